//! What routers in front of several servers ask: facts, load, rendered prompts, metrics in few bytes.

use std::io::Read;

use perigee_http::server::Config;
use serde_json::json;

use crate::client::Client;
use crate::fake::{self, CONTEXT, FakeEngine, MODEL, serve};

#[tokio::test]
async fn facts_have_the_names_that_gateways_read() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    for path in ["/server_info", "/get_server_info", "/model_info", "/get_model_info"] {
        let answer = client.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.json()["model_path"], MODEL, "{path}");
        assert_eq!(answer.json()["context_length"], CONTEXT, "{path}");
    }
    let info = client.get("/server_info").await.json();
    assert_eq!(
        (&info["served_model_name"], &info["tp_size"], &info["dp_size"]),
        (&json!(MODEL), &json!(1), &json!(1))
    );
    assert_eq!(info["max_total_num_tokens"], 1024 * 16);
    assert_eq!(client.get("/model_info").await.json()["is_generation"], true);
}

#[tokio::test]
async fn loads_and_gauges_are_those_of_the_moment() {
    let engine = FakeEngine::new(false);
    let server = serve(&engine, fake::config()).await;
    let mut running = Client::connect(server.addr()).await;
    running.start_post("/v1/completions", &json!({"prompt": "abc", "max_tokens": 1}).to_string()).await;
    engine.wait(|counts| counts.submitted == 1).await;
    let mut client = Client::connect(server.addr()).await;
    for (path, count) in [("/v1/loads?include=core,queues", 1), ("/loads?model=x", 1)] {
        let answer = client.get(path).await.json();
        assert_eq!(answer["loads"][0]["num_running_reqs"], count, "{path}");
    }
    let gauge = format!("vllm:num_requests_running{{engine=\"0\",model_name=\"{MODEL}\"}} ");
    let page = client.get("/metrics").await.text().to_owned();
    assert!(page.contains(&format!("{gauge}1\n")), "no step was needed");
    engine.step();
    assert_eq!(running.response().await.unwrap().status, 200);
    assert!(client.get("/metrics").await.text().contains(&format!("{gauge}0\n")));
}

#[tokio::test]
async fn prompts_are_rendered_for_every_api() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let mut of_chat = None;
    for (path, body) in [
        ("/v1/chat/completions/render", json!({"messages": messages})),
        ("/v1/responses/render", json!({"input": "Hi"})),
        ("/v1/messages/render", json!({"messages": messages, "max_tokens": 9})),
    ] {
        let answer = client.post(path, &body.to_string()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let answer = answer.json();
        assert_eq!(answer["token_ids"], answer["prompt_token_ids"], "{path}");
        assert_eq!((&answer["model"], &answer["object"]), (&json!(MODEL), &json!("chat.completion.prompt")));
        assert_eq!(answer["count"], answer["token_ids"].as_array().unwrap().len(), "{path}");
        assert_eq!(of_chat.get_or_insert(answer["token_ids"].clone()), &answer["token_ids"], "{path}");
    }
    for (prompt, expected) in [
        (json!("ab"), json!([[97, 98]])),
        (json!(["ab", "c"]), json!([[97, 98], [99]])),
        (json!([97, 98]), json!([[97, 98]])),
        (json!([[97], [98]]), json!([[97], [98]])),
    ] {
        let answer =
            client.post("/v1/completions/render", &json!({"prompt": prompt}).to_string()).await.json();
        let ids: Vec<_> = answer.as_array().unwrap().iter().map(|one| one["token_ids"].clone()).collect();
        assert_eq!(json!(ids), expected, "{prompt}");
    }
    let refused =
        client.post("/v1/completions/render", &json!({"prompt": "ab", "model": "other"}).to_string()).await;
    assert_eq!(refused.status, 404);
    assert!(engine.requests().is_empty(), "nothing was generated");
}

#[tokio::test]
async fn metrics_are_compressed_for_who_asks() {
    let engine = FakeEngine::new(true);
    let server = serve(&engine, fake::config()).await;
    let mut client = Client::connect(server.addr()).await;
    // The first answer adds the figures of its own route.
    client.get("/metrics").await;
    let plain = client.get("/metrics").await;
    assert_eq!(
        (plain.header("content-encoding"), plain.header("vary")),
        (None, Some("accept, accept-encoding"))
    );
    client
        .send(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept-encoding: gzip;q=1.0,*;q=0.1\r\n\r\n")
        .await;
    let packed = client.response().await.unwrap();
    assert_eq!(
        (packed.header("content-encoding"), packed.header("vary")),
        (Some("gzip"), Some("accept, accept-encoding"))
    );
    let mut page = String::new();
    flate2::read::GzDecoder::new(packed.body.as_slice()).read_to_string(&mut page).unwrap();
    let names = |page: &str| -> Vec<String> {
        page.lines().filter(|line| line.starts_with("# TYPE")).map(str::to_owned).collect()
    };
    assert_eq!(names(&page), names(plain.text()));
    assert!(packed.body.len() * 5 < page.len(), "{} of {}", packed.body.len(), page.len());
}

#[tokio::test]
async fn fleet_routes_need_a_key_where_keys_are_set() {
    let engine = FakeEngine::new(true);
    let config = Config { api_keys: vec![perigee_http::server::ApiKey::plain("k")], ..fake::config() };
    let server = serve(&engine, config).await;
    let mut client = Client::connect(server.addr()).await;
    for path in ["/server_info", "/model_info", "/v1/loads"] {
        assert_eq!(client.get(path).await.status, 401, "{path}");
    }
}
