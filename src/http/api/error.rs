//! Status codes and error bodies: the only place that has them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::format::Kind;
use crate::generate::{GenerateError, PolicyRefusal};

/// Longest message sent back: what a client wrote is quoted in messages, and may be megabytes.
const MAX_MESSAGE_CHARS: usize = 600;
/// Most of an id that is quoted as unknown.
const MAX_NAME_CHARS: usize = 64;
/// Most of a word that is quoted as unknown.
const MAX_SHOWN_CHARS: usize = 32;

/// What a dialect calls the fields of a chat request, where it has other names.
pub(super) type Words = &'static [(&'static str, &'static str)];

/// An answer that is an error, in the public API's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.code`: a stable identifier.
    pub code: &'static str,
    /// `error.message`: what is wrong, the limit, the remedy.
    pub message: String,
    /// `error.param`: the request field at fault.
    pub param: Option<String>,
    /// `Retry-After`, seconds.
    pub retry_after_s: Option<u32>,
    /// `Allow`, for 405.
    pub allow: Option<&'static str>,
    /// `x-should-retry: false`: a retry would meet the same fate.
    pub no_retry: bool,
    /// Whether the connection should be closed after the answer (the rest of the request was not read).
    pub close: bool,
}

/// The body of an error.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(super) struct ErrorBody<'a> {
    error: Fault<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Fault<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

/// The body of an error in Anthropic's shape.
#[derive(Serialize, JsonSchema)]
pub(super) struct MessagesError<'a> {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "error"))]
    kind: &'a str,
    error: MessagesFault<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct MessagesFault<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
}

impl ApiError {
    fn new(status: u16, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Some((cut, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
            message.truncate(cut);
            message.push('…');
        }
        Self {
            status,
            kind,
            code,
            message,
            param: None,
            retry_after_s: None,
            allow: None,
            no_retry: false,
            close: false,
        }
    }

    fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The same in the words of another dialect: pairs of a field's name in chat and there.
    pub(super) fn in_words(mut self, words: &[(&str, &str)]) -> Self {
        let Some(param) = &self.param else { return self };
        let renamed = words.iter().fold(param.clone(), |path, (chat, own)| {
            let whole = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
            match path.strip_prefix(chat) {
                Some(rest) if whole(rest) => format!("{own}{rest}"),
                _ => path,
            }
        });
        self.message = self.message.replacen(&format!("`{param}`"), &format!("`{renamed}`"), 1);
        self.param = Some(renamed);
        self
    }

    /// The same for a field that stands in an `object`, where `is_inside` says so of its path.
    pub(super) fn within(mut self, object: &str, is_inside: impl Fn(&str) -> bool) -> Self {
        let Some(param) = self.param.take_if(|param| is_inside(param)) else { return self };
        self.message = self.message.replacen(&format!("`{param}`"), &format!("`{object}.{param}`"), 1);
        self.param = Some(format!("{object}.{param}"));
        self
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// 400: the body is not JSON.
    pub fn invalid_json(message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request_error", "invalid_json", message)
    }

    /// 400: a field has a wrong type.
    pub fn invalid_type(param: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::new(400, "invalid_request_error", "invalid_type", format!("`{param}`: {message}")).param(param)
    }

    /// 400: a field has a value that is not allowed.
    pub fn invalid_value(param: impl Into<String>, message: impl Into<String>) -> Self {
        let (param, message) = (param.into(), message.into());
        Self::new(400, "invalid_request_error", "invalid_value", format!("`{param}`: {message}")).param(param)
    }

    /// 400: a field has a word that is not among the `allowed` ones.
    pub(super) fn unknown_value(param: impl Into<String>, given: &str, allowed: &str) -> Self {
        let shown: String = given.chars().take(MAX_SHOWN_CHARS).collect();
        Self::invalid_value(param, format!("`{shown}` is unknown, allowed: {allowed}"))
    }

    /// 400: a required field is absent.
    pub fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::new(
            400,
            "invalid_request_error",
            "missing_required_parameter",
            format!("`{param}` is required but missing"),
        )
        .param(param)
    }

    /// 400: the field asks for something this version does not have.
    pub fn unsupported(param: impl Into<String>, what: &str) -> Self {
        let param = param.into();
        Self::new(
            400,
            "invalid_request_error",
            "unsupported_parameter",
            format!("`{param}`: {what} is not available in this version; send the request without it"),
        )
        .param(param)
    }

    /// 400: the field asks for something that only other routes give.
    pub(super) fn elsewhere(param: &str, what: &str) -> Self {
        Self::new(
            400,
            "invalid_request_error",
            "unsupported_parameter",
            format!("`{param}`: this route does not have {what}; /v1/chat/completions does"),
        )
        .param(param)
    }

    /// 404: no response of this client has this id.
    pub(super) fn unknown_response(param: Option<&str>, id: &str) -> Self {
        let shown: String = id.chars().take(MAX_NAME_CHARS).collect();
        let place = param.map(|param| format!("`{param}`: ")).unwrap_or_default();
        let message = format!(
            "{place}response with id `{shown}` not found: it was never stored for this key, or has made room for \
             others (server.stored_responses_bytes); send the whole conversation as `input`"
        );
        let code = if param.is_some() { "previous_response_not_found" } else { "response_not_found" };
        let error = Self::new(404, "not_found_error", code, message);
        match param {
            Some(param) => error.param(param),
            None => error,
        }
    }

    /// 400: the response is worked on in the background.
    pub(super) fn response_in_progress(param: Option<&str>, id: &str) -> Self {
        let shown: String = id.chars().take(MAX_NAME_CHARS).collect();
        let place = param.map(|param| format!("`{param}`: ")).unwrap_or_default();
        let message =
            format!("{place}response with id `{shown}` is in progress; wait for its end, or cancel it");
        let error = Self::new(400, "invalid_request_error", "response_in_progress", message);
        match param {
            Some(param) => error.param(param),
            None => error,
        }
    }

    /// 400: only work in the background can be cancelled.
    pub(super) fn not_in_background(id: &str) -> Self {
        let shown: String = id.chars().take(MAX_NAME_CHARS).collect();
        let message = format!(
            "response with id `{shown}` was not asked for with `background`; end any other by closing its connection"
        );
        Self::new(400, "invalid_request_error", "response_not_in_background", message)
    }

    /// 500: a response in the background has grown beyond its room.
    pub(super) fn response_too_large() -> Self {
        let message = "the response has grown, with its conversation, to more than half of the room for stored responses \
                       (server.stored_responses_bytes); ask for it without `background`";
        Self::new(500, "server_error", "response_too_large", message)
    }

    /// 503: the responses in the background fill their room.
    pub(super) fn no_room_in_background(limit_bytes: usize) -> Self {
        let message = format!(
            "the responses that are worked on in the background, with their conversations, fill half of the \
             {limit_bytes} bytes for stored responses (server.stored_responses_bytes); try again soon"
        );
        Self::new(503, "server_error", "too_many_in_background", message).retry_after(5)
    }

    /// 404: an item of an input that is stored nowhere.
    pub(super) fn unknown_item(path: &str, id: &str) -> Self {
        let shown: String = id.chars().take(MAX_SHOWN_CHARS).collect();
        let message = format!("`{path}`: item with id `{shown}` not found; send the item itself");
        Self::new(404, "not_found_error", "item_not_found", message).param(path)
    }

    /// 400: no field has this name, and unknown ones are refused. `meant` is a known name that is nearly this one.
    pub(super) fn unknown_field(name: &str, meant: Option<&str>) -> Self {
        let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
        let message =
            format!("`{name}`: no field of this route has this name (server.unknown_fields){meant}");
        Self::new(400, "invalid_request_error", "unknown_parameter", message).param(name)
    }

    /// 401: no key, or a wrong one.
    pub fn unauthorized() -> Self {
        Self::new(
            401,
            "authentication_error",
            "invalid_api_key",
            "a valid API key is needed: send it as `Authorization: Bearer KEY`",
        )
    }

    /// 401: the key was one until a moment that is over.
    pub fn expired_key(client: &str, expires: &str) -> Self {
        let message = format!("the key of `{client}` ended at {expires} UTC (server.api_keys)");
        Self::new(401, "authentication_error", "expired_api_key", message)
    }

    /// 403: the key does not open this route.
    pub fn route_not_allowed(client: &str, route: &str, allowed: &[&str]) -> Self {
        let message = format!(
            "the key of `{client}` does not open {route}; it opens {} (server.api_keys)",
            allowed.join(", ")
        );
        Self::new(403, "permission_error", "route_not_allowed", message)
    }

    /// 429: a budget of a day or a month is used up until it begins anew.
    pub fn budget_used(client: &str, limit: &str, value: u64, wait: Duration) -> Self {
        let seconds = wait.as_secs_f64().ceil().clamp(1.0, 1e9) as u32;
        let message = format!(
            "the key of `{client}` has used its {limit} of {value} (server.api_keys); it begins anew in {seconds} s"
        );
        // A client that waits for so long keeps its own caller waiting.
        let no_retry = seconds > 60;
        Self { no_retry, ..Self::new(429, "insufficient_quota", "insufficient_quota", message) }
            .retry_after(seconds)
    }

    /// 401: the client's TLS handshake shows no certificate.
    pub fn certificate_needed() -> Self {
        Self::new(
            401,
            "authentication_error",
            "client_certificate_needed",
            "a client certificate is needed: send one that a CA of server.tls_client_ca has signed",
        )
    }

    /// 400: HTTP without TLS on a port that has TLS.
    pub fn not_tls() -> Self {
        Self::new(
            400,
            "invalid_request_error",
            "tls_needed",
            "this port speaks HTTPS: use https:// in the URL",
        )
        .closing()
    }

    /// 403: the route is the operator's, who has no key.
    pub fn no_admin_key() -> Self {
        Self::new(
            403,
            "permission_error",
            "no_admin_key",
            "this route is the operator's: set server.admin_key, and send it as `Authorization: Bearer KEY`",
        )
    }

    /// 404: there is no usage ledger.
    pub fn no_ledger() -> Self {
        let message = "no usage is written down: set usage.directory to a folder, and start again";
        Self::new(404, "invalid_request_error", "no_ledger", message)
    }

    /// 403: the route is the operator's, and the key is a client's.
    pub fn not_admin() -> Self {
        Self::new(403, "permission_error", "admin_key_needed", "this route needs server.admin_key as its key")
    }

    /// 422: settings that were to be reloaded are wrong; those in force stay.
    pub fn invalid_settings(problems: String) -> Self {
        let message = format!("nothing was changed: {problems}");
        Self::new(422, "invalid_request_error", "invalid_settings", message)
    }

    /// 429: a client has used what its key may use; a request is let in after `wait`.
    pub fn rate_limited(client: &str, limit: &str, value: u64, wait: Duration) -> Self {
        let seconds = wait.as_secs_f64().ceil().clamp(1.0, 1e9) as u32;
        let message = format!(
            "the key of `{client}` has used its {limit} of {value} (server.api_keys); try again in {seconds} s"
        );
        Self::new(429, "rate_limit_error", "rate_limit_exceeded", message).retry_after(seconds)
    }

    /// 400: a path with escapes that are none.
    pub fn invalid_path(path: &str) -> Self {
        Self::new(
            400,
            "invalid_request_error",
            "invalid_path",
            format!(
                "{path} is not valid: a % needs two hexadecimal digits behind it, and the bytes must be UTF-8"
            ),
        )
    }

    /// 400: no host, or none that can be read.
    pub fn invalid_host(what: &str) -> Self {
        Self::new(400, "invalid_request_error", "invalid_host", what).param("host")
    }

    /// 421: the request is addressed to another server.
    pub fn wrong_host(host: &str) -> Self {
        let message = format!("this server is not `{host}`; list the name in server.allowed_hosts if it is");
        Self::new(421, "invalid_request_error", "misdirected_request", message).param("host")
    }

    /// 404: no such path.
    pub fn unknown_path(path: &str) -> Self {
        Self::new(404, "not_found_error", "unknown_url", format!("there is nothing at {path}"))
    }

    /// 404: no such model.
    pub fn unknown_model(model: &str, served: &[String]) -> Self {
        let served = served.join(", ");
        Self::new(
            404,
            "not_found_error",
            "model_not_found",
            format!(
                "the model `{model}` does not exist here; served: {served} (the server's model.accept_any_name = true takes every name)"
            ),
        )
        .param("model")
    }

    /// 405: the path exists, the method does not.
    pub fn method_not_allowed(method: &str, path: &str, allow: &'static str) -> Self {
        let message = format!("{path} does not take {method}, only {allow}");
        let mut error = Self::new(405, "invalid_request_error", "method_not_allowed", message);
        error.allow = Some(allow);
        error
    }

    /// 408: the body came too slowly.
    pub fn slow_body(limit: Duration) -> Self {
        let limit_s = limit.as_secs_f64();
        Self::new(
            408,
            "invalid_request_error",
            "request_timeout",
            format!("the request body was not complete within {limit_s} s (server.body_read_timeout_s)"),
        )
        .closing()
    }

    /// 408: the body came too slowly for the room that it held from others.
    pub fn stalled_body(least_bytes: usize, time: Duration) -> Self {
        let time_s = time.as_secs_f64();
        Self::new(
            408,
            "invalid_request_error",
            "request_timeout",
            format!(
                "less than {least_bytes} bytes of the request body arrived in {time_s} s, while other requests waited \
                 for its room (server.max_bodies_bytes)"
            ),
        )
        .closing()
    }

    /// 400: the body ended early or broke its framing.
    pub fn broken_body(detail: &str) -> Self {
        Self::new(
            400,
            "invalid_request_error",
            "invalid_body",
            format!("the request body could not be read: {detail}"),
        )
        .closing()
    }

    /// 501: the body has a transfer coding other than `chunked`.
    pub fn unsupported_transfer_encoding() -> Self {
        Self::new(
            501,
            "invalid_request_error",
            "unsupported_transfer_encoding",
            "`transfer-encoding` must be `chunked` and nothing else; a compressed body has `content-encoding`",
        )
        .param("transfer-encoding")
        .closing()
    }

    /// 413: the body is too large.
    pub fn too_large(limit_bytes: usize) -> Self {
        Self::new(
            413,
            "invalid_request_error",
            "request_too_large",
            format!("the request body is larger than {limit_bytes} bytes (server.max_body_bytes)"),
        )
        .closing()
    }

    /// 413: the body is too large once it is unpacked.
    pub fn too_large_unpacked(limit_bytes: usize) -> Self {
        Self::new(
            413,
            "invalid_request_error",
            "request_too_large",
            format!("the unpacked request body is larger than {limit_bytes} bytes (server.max_body_bytes)"),
        )
    }

    /// 400: the body is not what its `content-encoding` says.
    pub fn damaged_body(coding: &str, problem: &str) -> Self {
        let message = format!("the request body is not intact {coding} (content-encoding): {problem}");
        Self::new(400, "invalid_request_error", "invalid_body", message).param("content-encoding")
    }

    /// 415: the body is not JSON by its own account.
    pub fn unsupported_media_type(header: &'static str, value: Option<&str>) -> Self {
        let given = value.map_or_else(|| format!("{header} is missing"), |v| format!("{header} is `{v}`"));
        let remedy = match header {
            "content-encoding" => "send the body as it is, or packed once: gzip, deflate or zstd",
            _ => "send JSON with the header `content-type: application/json`",
        };
        Self::new(415, "invalid_request_error", "unsupported_media_type", format!("{given}; {remedy}"))
            .param(header)
    }

    /// 503: the bodies of other requests fill the room there is.
    pub fn no_room_for_body(limit_bytes: usize) -> Self {
        Self::new(
            503,
            "server_error",
            "too_many_bodies",
            format!(
                "the bodies of other requests fill the {limit_bytes} bytes there are for them \
                 (server.max_bodies_bytes); try again soon"
            ),
        )
        .retry_after(5)
        .closing()
    }

    /// 503: all connections are taken.
    pub fn too_many_connections(limit: usize) -> Self {
        Self::new(
            503,
            "server_error",
            "too_many_connections",
            format!("all {limit} connections (server.max_connections) are in use; try again soon"),
        )
        .retry_after(1)
        .closing()
    }

    /// 503: still booting.
    pub fn starting(stage: &str, percent: u32) -> Self {
        Self::new(
            503,
            "server_error",
            "server_starting",
            format!("the server is starting: {stage}, {percent} % of it done; see /health/startup"),
        )
        .retry_after(2)
    }

    /// 503: the boot ended in an error.
    pub fn boot_failed(reason: &str) -> Self {
        Self::new(503, "server_error", "boot_failed", format!("the server could not start: {reason}"))
            .retry_after(30)
    }

    /// 503: shutting down.
    pub fn draining() -> Self {
        GenerateError::Draining.into()
    }

    /// 503: cut off by the end of a drain.
    pub fn shutdown() -> Self {
        Self::new(
            503,
            "server_error",
            "shutdown",
            "the reply was cut off: the server shuts down, and its time to finish requests is over \
             (server.drain_timeout_s)",
        )
        .retry_after(5)
    }

    /// 500: a fault of the server itself.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "server_error", "internal_error", message)
    }

    /// The walk's error as a route says it.
    pub(super) fn in_dialect(kind: Kind, error: GenerateError) -> Self {
        match error {
            // Agents of Anthropic's dialect look for these words: they then shorten the conversation, and give up at others.
            GenerateError::TooLong { prompt_tokens, max_tokens, max_model_len } if kind == Kind::Messages => {
                let room = max_model_len.saturating_sub(max_tokens.unwrap_or(1) as usize);
                let message = format!(
                    "prompt is too long: {prompt_tokens} tokens > {room} maximum; shorten the conversation \
                     (this model's maximum context length is {max_model_len} tokens, replies included)"
                );
                Self::new(400, "invalid_request_error", "context_length_exceeded", message)
            }
            other => other.into(),
        }
    }

    /// The body in Anthropic's shape.
    pub fn anthropic_body(&self) -> Vec<u8> {
        let kind = match self.status {
            400 | 405 | 408 | 415 | 421 | 501 => "invalid_request_error",
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            _ => "api_error",
        };
        let error = MessagesFault { kind, message: &self.message };
        serde_json::to_vec(&MessagesError { kind: "error", error }).expect("strings serialise")
    }

    /// The body: `{"error": {...}}`.
    pub fn body(&self) -> Vec<u8> {
        let Self { message, kind, param, code, .. } = self;
        let error = Fault { message, kind, param: param.as_deref(), code };
        serde_json::to_vec(&ErrorBody { error }).expect("strings serialise")
    }
}

impl From<PolicyRefusal> for ApiError {
    /// 400: the operator allows other values only.
    fn from(refusal: PolicyRefusal) -> Self {
        Self::new(400, "invalid_request_error", "invalid_value", refusal.to_string()).param(refusal.field)
    }
}

impl From<GenerateError> for ApiError {
    fn from(error: GenerateError) -> Self {
        let message = error.to_string();
        match error {
            GenerateError::QueueFull { retry_after_s, .. }
            | GenerateError::ShareFull { retry_after_s, .. } => {
                Self::new(429, "rate_limit_error", "queue_full", message).retry_after(retry_after_s)
            }
            GenerateError::TooLargeForQueue { field, .. } => {
                let message = format!("`{field}`: {message}");
                Self::new(400, "invalid_request_error", "too_large_for_queue", message).param(field)
            }
            GenerateError::Draining => {
                Self::new(503, "server_error", "server_draining", message).retry_after(5)
            }
            GenerateError::TooLong { .. } => {
                Self::new(400, "invalid_request_error", "context_length_exceeded", message)
            }
            GenerateError::EmptyPrompt => {
                Self::new(400, "invalid_request_error", "empty_prompt", message).param("prompt")
            }
            GenerateError::UnknownToken { .. } => {
                Self::new(400, "invalid_request_error", "unknown_token", message).param("prompt")
            }
            GenerateError::Template(_) => {
                Self::new(400, "invalid_request_error", "invalid_messages", message).param("messages")
            }
            GenerateError::Grammar { field, .. } => {
                let message = format!("`{field}`: {message}");
                Self::new(400, "invalid_request_error", "invalid_grammar", message).param(field)
            }
            GenerateError::TooFewTokens { .. } => {
                Self::new(400, "invalid_request_error", "max_tokens_too_small", message).param("max_tokens")
            }
            GenerateError::TooManyLogprobs { field, .. } => {
                let message = format!("`{field}`: {message}");
                Self::new(400, "invalid_request_error", "too_many_logprobs", message).param(field)
            }
            GenerateError::Image { place, .. } => {
                Self::new(400, "invalid_request_error", "invalid_image", format!("`{place}`: {message}"))
                    .param(place)
            }
            GenerateError::Blind { place, .. } => {
                let message = format!("`{place}`: {message}");
                Self::new(400, "invalid_request_error", "unsupported_parameter", message).param(place)
            }
            GenerateError::ImagesWait { .. } => {
                Self::new(503, "server_error", "too_many_images", message).retry_after(5)
            }
            GenerateError::GrammarsWait { .. } => {
                Self::new(503, "server_error", "too_many_grammars", message).retry_after(5)
            }
            GenerateError::Tokenize(_) => Self::new(400, "invalid_request_error", "invalid_prompt", message),
            GenerateError::Deadline { .. } => {
                let mut error = Self::new(504, "server_error", "deadline_exceeded", message);
                error.no_retry = true;
                error
            }
            GenerateError::Aborted => Self::new(503, "server_error", "aborted", message).retry_after(5),
            GenerateError::NumericFault => Self::new(500, "server_error", "numeric_fault", message),
            GenerateError::EngineFailed => Self::new(500, "server_error", "engine_failed", message),
            GenerateError::EngineGone => {
                Self::new(503, "server_error", "engine_stopped", message).retry_after(30)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_text::grammar::GrammarError;

    #[test]
    fn bodies_have_the_public_shape() {
        let error = ApiError::invalid_value("top_p", "2 is out of range, allowed: above 0, at most 1");
        assert_eq!(
            String::from_utf8(error.body()).unwrap(),
            r#"{"error":{"message":"`top_p`: 2 is out of range, allowed: above 0, at most 1","type":"invalid_request_error","param":"top_p","code":"invalid_value"}}"#
        );
        assert!(String::from_utf8(ApiError::unauthorized().body()).unwrap().contains(r#""param":null"#));
    }

    #[test]
    fn walk_errors_have_their_status() {
        let cases = [
            (GenerateError::QueueFull { waiting: 3, limit: 3, retry_after_s: 7 }, 429, Some(7)),
            (GenerateError::ShareFull { waiting: 3, free: 3, retry_after_s: 7 }, 429, Some(7)),
            (
                GenerateError::TooLargeForQueue {
                    field: "n",
                    unit: "replies",
                    count: 9,
                    limit: 8,
                    setting: "scheduler.max_queue_len",
                },
                400,
                None,
            ),
            (GenerateError::Draining, 503, Some(5)),
            (GenerateError::TooLong { prompt_tokens: 9, max_tokens: Some(2), max_model_len: 8 }, 400, None),
            (GenerateError::EmptyPrompt, 400, None),
            (GenerateError::UnknownToken { id: 9, vocab_size: 8 }, 400, None),
            (GenerateError::Template("x".into()), 400, None),
            (GenerateError::TooFewTokens { field: "response_format", needs: 9, allowed: 8 }, 400, None),
            (
                GenerateError::Grammar {
                    field: "response_format",
                    reason: GrammarError::TooSlow { limit_s: 10 },
                },
                400,
                None,
            ),
            (GenerateError::GrammarsWait { limit_s: 10 }, 503, Some(5)),
            (GenerateError::ImagesWait { limit_s: 10.0 }, 503, Some(5)),
            (GenerateError::Deadline { limit_s: 1.0 }, 504, None),
            (GenerateError::EngineFailed, 500, None),
            (GenerateError::NumericFault, 500, None),
            (GenerateError::EngineGone, 503, Some(30)),
        ];
        for (walk, status, retry_after_s) in cases {
            let error = ApiError::from(walk.clone());
            assert_eq!((error.status, error.retry_after_s), (status, retry_after_s), "{walk:?}");
        }
        let long = GenerateError::TooLong { prompt_tokens: 9, max_tokens: None, max_model_len: 8 };
        assert!(ApiError::from(long).message.contains("maximum context length"));
    }

    #[test]
    fn fields_have_the_names_of_the_dialect() {
        let words = [("stop", "stop_sequences")];
        for (chat, own) in [
            ("stop", "stop_sequences"),
            ("stop[3]", "stop_sequences[3]"),
            ("stop_token_ids", "stop_token_ids"),
            ("model", "model"),
        ] {
            let error = ApiError::invalid_value(chat, "no").in_words(&words);
            assert_eq!((error.param.as_deref(), error.message), (Some(own), format!("`{own}`: no")));
        }
        let plain = ApiError::invalid_json("`stop`");
        assert_eq!(plain.clone().in_words(&words), plain);
    }

    #[test]
    fn long_messages_are_cut() {
        let error = ApiError::invalid_json("é".repeat(10_000));
        assert_eq!(error.message.chars().count(), MAX_MESSAGE_CHARS + 1);
    }
}
