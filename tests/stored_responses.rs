//! Stored responses: a conversation that goes on from one, retrieval and deletion, and whose they are.

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::serve::{Served, runtime};

const RESPONSES: &str = "/v1/responses";

fn ask(input: Value, more: Value) -> Value {
    let mut body =
        json!({"input": input, "temperature": 0, "max_output_tokens": 24, "thinking": {"type": "disabled"}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A request with a key; the method and the path in one.
async fn send(served: &Served, line: &str, key: &str, body: Option<&Value>) -> Response {
    let mut client = Client::connect(served.addr).await;
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let head = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n{kind}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.send(head.as_bytes()).await;
    client.response().await.unwrap()
}

#[test]
fn a_conversation_goes_on_from_a_stored_response() {
    let served = Served::start(None, &[]);
    runtime().block_on(async {
        let first = ask("Which port does Perigee listen on?".into(), json!({}));
        let answer = served.post(RESPONSES, &first).await;
        assert_eq!((&answer["store"], &answer["previous_response_id"]), (&json!(true), &Value::Null));
        let id = answer["id"].as_str().unwrap();
        // What the client would have sent itself, and the same prompt from it.
        let more = json!({"role": "user", "content": "And the host?"});
        let mut whole = vec![json!({"role": "user", "content": first["input"]})];
        whole.extend(answer["output"].as_array().unwrap().iter().cloned());
        whole.push(more.clone());
        let render = format!("{RESPONSES}/render");
        let wanted = served.post(&render, &ask(whole.into(), json!({}))).await["prompt"].clone();
        let goes_on =
            |more: Value| ask(json!("And the host?"), json!({"previous_response_id": id, "stream": more}));
        assert_eq!(served.post(&render, &goes_on(json!(false))).await["prompt"], wanted);
        let counted = served.post("/v1/responses/input_tokens", &goes_on(json!(false))).await;
        assert!(counted["input_tokens"].as_u64() > answer["usage"]["input_tokens"].as_u64());

        // A streamed response is stored too, and a third one goes on from it.
        let mut client = Client::connect(served.addr).await;
        let stream = client.post(RESPONSES, &goes_on(json!(true)).to_string()).await;
        let last = stream.text().lines().rfind(|line| line.starts_with("data: ")).unwrap()[6..].to_owned();
        let second = serde_json::from_str::<Value>(&last).unwrap()["response"].clone();
        assert_eq!(second["previous_response_id"], *id);
        let path = format!("{RESPONSES}/{}", second["id"].as_str().unwrap());
        assert_eq!(client.get(&path).await.json(), second);
        let items = client.get(&format!("{path}/input_items?order=asc")).await.json();
        assert_eq!(items["data"][2]["content"], "And the host?", "{items}");
        assert_eq!((&items["object"], &items["has_more"]), (&json!("list"), &json!(false)));

        // Deleted: gone, and still part of what went on from it.
        let gone = send(&served, &format!("DELETE {RESPONSES}/{id}"), "none", None).await;
        assert_eq!(gone.json(), json!({"id": id, "object": "response", "deleted": true}));
        assert_eq!(client.get(&format!("{RESPONSES}/{id}")).await.status, 404);
        let again = client.post(RESPONSES, &goes_on(json!(false)).to_string()).await;
        assert_eq!(
            (again.status, &again.json()["error"]["code"]),
            (404, &json!("previous_response_not_found"))
        );
        assert_eq!(
            client.get(&format!("{path}/input_items")).await.json()["data"].as_array().unwrap().len(),
            3
        );

        let unstored = served.post(RESPONSES, &ask(json!("x"), json!({"store": false}))).await;
        assert_eq!(unstored["store"], false);
        let path = format!("{RESPONSES}/{}", unstored["id"].as_str().unwrap());
        assert_eq!(client.get(&path).await.status, 404);
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn the_background_says_what_the_foreground_does() {
    let served = Served::start(None, &["kv_cache.prefix_caching=false"]);
    runtime().block_on(async {
        let question = json!("Which port does Perigee listen on?");
        let now = served.post(RESPONSES, &ask(question.clone(), json!({}))).await;
        let begun = served.post(RESPONSES, &ask(question, json!({"background": true}))).await;
        let path = format!("{RESPONSES}/{}", begun["id"].as_str().unwrap());
        let mut client = Client::connect(served.addr).await;
        let later = loop {
            let response = client.get(&path).await.json();
            if response["status"] != "in_progress" {
                break response;
            }
        };
        for field in ["status", "usage", "error", "model"] {
            assert_eq!(now[field], later[field], "{field}");
        }
        assert_eq!(now["output"][0]["content"], later["output"][0]["content"]);
        let goes_on = ask(json!("And the host?"), json!({"previous_response_id": begun["id"]}));
        assert_eq!(served.post(RESPONSES, &goes_on).await["previous_response_id"], begun["id"]);
        let cancel = client.post(&format!("{RESPONSES}/{}/cancel", now["id"].as_str().unwrap()), "").await;
        assert_eq!(
            (cancel.status, &cancel.json()["error"]["code"]),
            (400, &json!("response_not_in_background"))
        );
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_key_reads_its_own_responses_alone() {
    let served = Served::start(None, &["server.api_keys=[\"ada\", \"bob\"]", "server.admin_key=root"]);
    runtime().block_on(async {
        let body = ask(json!("Hello"), json!({}));
        let answer = send(&served, &format!("POST {RESPONSES}"), "ada", Some(&body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        for key in ["bob", "root"] {
            for line in [
                "GET /v1/responses/ID",
                "GET /v1/responses/ID/input_items",
                "POST /v1/responses/ID/cancel",
                "DELETE /v1/responses/ID",
            ] {
                let status = send(&served, &line.replace("ID", &id), key, None).await.status;
                assert_eq!(status, 404, "{key}: {line}");
            }
            let goes_on = ask(json!("x"), json!({"previous_response_id": id}));
            assert_eq!(send(&served, &format!("POST {RESPONSES}"), key, Some(&goes_on)).await.status, 404);
        }
        let line = format!("GET {RESPONSES}/{id}");
        assert_eq!(send(&served, &line, "nobody", None).await.status, 401);
        assert_eq!(send(&served, &line, "ada", None).await.json()["id"], *id);
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn nothing_is_stored_where_the_operator_gives_no_room() {
    let served = Served::start(None, &["server.stored_responses_bytes=0"]);
    runtime().block_on(async {
        let answer = served.post(RESPONSES, &ask(json!("x"), json!({"store": true}))).await;
        assert_eq!(answer["store"], false);
        let path = format!("{RESPONSES}/{}", answer["id"].as_str().unwrap());
        let mut client = Client::connect(served.addr).await;
        let refused = client.post(RESPONSES, &ask(json!("x"), json!({"background": true})).to_string()).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("background")));
        assert_eq!(client.get(&path).await.status, 404);
        assert_eq!(client.post(&path, "{}").await.status, 405);
    });
    assert_eq!(served.terminate(), Some(0));
}
