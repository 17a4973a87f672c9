//! Answers about stored responses: the conversation that one answers, and the end of one.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::super::ApiError;

/// Items of a page where none is asked for, and most of one.
const DEFAULT_ITEMS: usize = 20;
const MAX_ITEMS: usize = 100;

/// The answer of `DELETE /v1/responses/ID`.
#[derive(Serialize, JsonSchema)]
pub(in super::super) struct DeletedResponse<'a> {
    pub(in super::super) id: &'a str,
    #[schemars(extend("const" = "response"))]
    pub(in super::super) object: &'a str,
    pub(in super::super) deleted: bool,
}

/// The answer of `/v1/responses/ID/input_items`: a page of the conversation.
#[derive(Serialize, JsonSchema)]
pub(in super::super) struct InputItems {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Vec<Value>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl InputItems {
    /// The page that `query` asks for by `limit`, `order` (`desc`, newest first, or `asc`) and `after`, the id
    /// of the item before the page. Items that came without an id have one by their place.
    pub(in super::super) fn of(mut items: Vec<Value>, query: &str) -> Result<Self, ApiError> {
        for (place, item) in items.iter_mut().enumerate() {
            if item["id"].is_null() && item.is_object() {
                item["id"] = format!("item_{place}").into();
            }
            if item["type"].is_null() && item.is_object() {
                item["type"] = "message".into();
            }
        }
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|pair| pair.0 == name).map(|pair| pair.1)
        };
        match value("order") {
            None | Some("desc") => items.reverse(),
            Some("asc") => {}
            Some(other) => return Err(ApiError::unknown_value("order", other, "asc, desc")),
        }
        let limit = match value("limit").map(str::parse::<usize>) {
            None => DEFAULT_ITEMS,
            Some(Ok(limit)) if (1..=MAX_ITEMS).contains(&limit) => limit,
            Some(_) => {
                return Err(ApiError::invalid_value("limit", format!("allowed: 1 to {MAX_ITEMS}")));
            }
        };
        if let Some(after) = value("after") {
            let at = items.iter().position(|item| item["id"] == after);
            let at = at.ok_or_else(|| ApiError::invalid_value("after", "no item has this id"))?;
            items.drain(..=at);
        }
        let has_more = items.len() > limit;
        items.truncate(limit);
        let id = |item: Option<&Value>| item.and_then(|item| item["id"].as_str()).map(str::to_owned);
        let (first_id, last_id) = (id(items.first()), id(items.last()));
        Ok(Self { object: "list", data: items, first_id, last_id, has_more })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_come_in_pages() {
        let items = || (0..45).map(|n| json!({"role": "user", "content": n.to_string()})).collect::<Vec<_>>();
        let page = |query: &str| InputItems::of(items(), query).unwrap();
        let newest = page("");
        assert_eq!(
            (newest.data.len(), newest.first_id.as_deref(), newest.has_more),
            (20, Some("item_44"), true)
        );
        let oldest = page("order=asc&limit=2");
        assert_eq!((oldest.first_id.as_deref(), oldest.last_id.as_deref()), (Some("item_0"), Some("item_1")));
        let last = page("order=asc&limit=100&after=item_42");
        assert_eq!((last.data.len(), last.has_more), (2, false));
        assert_eq!(page("after=item_0").data.len(), 0);
        for (query, param) in
            [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")]
        {
            let error = InputItems::of(items(), query).map(|_| ()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param));
        }
    }
}
