//! Images over HTTP: the oracle's conversations on every route that takes content, and what people really send.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::serve::{Served, runtime};
use crate::vision::{Expected, cases, oracle};

const CHAT: &str = "/v1/chat/completions";

fn file(name: &str) -> Vec<u8> {
    fs::read(oracle().join(name)).unwrap()
}

fn data_url(bytes: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(bytes))
}

/// The messages of a case, its files as `data:` URLs.
fn messages(case: &Value) -> Value {
    let mut messages = case["messages"].clone();
    for message in messages.as_array_mut().unwrap() {
        for part in message["content"].as_array_mut().into_iter().flatten() {
            if let Some(name) = part["image_url"]["url"].as_str() {
                part["image_url"]["url"] = data_url(&file(&format!("images/{name}"))).into();
            }
        }
    }
    messages
}

/// One user message with one image.
fn with_image(url: &str) -> Value {
    let content = json!([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": url}}]);
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2, "temperature": 0})
}

async fn ask(client: &mut Client, path: &str, body: &Value) -> Response {
    client.post(path, &body.to_string()).await
}

/// Bytes of memory that the process has used at most.
fn peak_memory(served: &Served) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", served.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// What the server keeps the oracle's checkpoint from writing without tools: the tokens that begin calls, media tokens. The reference does not.
const NEVER_SAMPLED: [u32; 6] = [267, 269, 274, 275, 276, 277];

#[test]
fn conversations_with_images_are_answered_on_every_route() {
    let (expected, cases) = (Expected::read(), cases());
    let served = Served::start(Some(&oracle()), &[]);
    let mut compared = 0;
    runtime().block_on(async {
        for (i, case) in cases["prompts"].as_array().unwrap().iter().enumerate() {
            let messages = messages(case);
            let options =
                json!({"max_tokens": 24, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
            let mut body = json!({"messages": messages});
            body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
            let answer = served.post(CHAT, &body).await;
            let usage = &answer["usage"];
            let of_images: u64 =
                case["image_tokens"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
            assert_eq!(usage["prompt_tokens"], case["prompt_tokens"], "prompt {i}");
            assert_eq!(usage["prompt_tokens_details"]["image_tokens"], of_images, "prompt {i}");
            // Decoders of JPEG differ by single levels, and the replies to them may.
            let lossless = !case["images"].to_string().contains("jpg");
            let ids: Vec<u32> = serde_json::from_value(answer["choices"][0]["token_ids"].clone()).unwrap();
            if lossless {
                let greedy = expected.ids(&format!("prompt_{i}.greedy"));
                let same = greedy.iter().position(|id| NEVER_SAMPLED.contains(id)).unwrap_or(greedy.len());
                assert_eq!(ids[..same], greedy[..same], "prompt {i}");
                compared += same;
            }
            let counted = served.post("/tokenize", &json!({"messages": messages})).await;
            assert_eq!(counted["count"], case["prompt_tokens"], "prompt {i}");
            let rendered = served.post("/v1/chat/completions/render", &json!({"messages": messages})).await;
            assert_eq!(rendered["prompt"], case["rendered"], "prompt {i}");
            assert_eq!(rendered["count"], case["prompt_tokens"], "prompt {i}");
        }
        assert!(compared >= 24, "{compared} tokens compared");
        let card = Client::connect(served.addr).await.get("/v1/models").await.json();
        assert_eq!(card["data"][0]["supports_image_in"], true);
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn every_dialect_shows_the_same_image() {
    let served = Served::start(Some(&oracle()), &[]);
    let bytes = file("images/rgb.png");
    let (url, payload) = (data_url(&bytes), STANDARD.encode(&bytes));
    let text = |text: &str| json!({"type": "text", "text": text});
    runtime().block_on(async {
        let chat = |content: Value| {
            json!({"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0,
                "chat_template_kwargs": {"thinking": false}})
        };
        let parts = json!([{"type": "image_url", "image_url": {"url": url, "detail": "low"}}, text("What is it?")]);
        let first = served.post(CHAT, &chat(parts)).await;
        let said = first["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let spaced = format!("DATA:image/jpeg;base64, {}\n", payload);
        for image in [
            json!({"type": "image_url", "image_url": url}),
            json!({"type": "input_image", "image_url": spaced}),
            json!({"type": "image", "image": url}),
        ] {
            let again = served.post(CHAT, &chat(json!([image, text("What is it?")]))).await;
            assert_eq!(again["choices"][0]["message"]["content"], said.as_str());
            assert_eq!(again["usage"]["prompt_tokens"], first["usage"]["prompt_tokens"]);
        }
        let input = json!([{"role": "user", "content": [
            {"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": "What is it?"}]}]);
        let body = json!({"input": input, "max_output_tokens": 8, "temperature": 0, "reasoning": {"effort": "none"}});
        let response = served.post("/v1/responses", &body).await;
        assert_eq!(response["usage"]["input_tokens"], first["usage"]["prompt_tokens"], "{response}");
        assert_eq!(response["output"][0]["content"][0]["text"], said.as_str());
        let block = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": payload}});
        let turns = json!([{"role": "user", "content": [block, text("What is it?")]}]);
        let body = json!({"messages": turns, "max_tokens": 8, "temperature": 0, "thinking": {"type": "disabled"}});
        let message = served.post("/v1/messages", &body).await;
        assert_eq!(message["content"][0]["text"], said.as_str(), "{message}");
        let count = served.post("/v1/messages/count_tokens", &json!({"messages": turns})).await;
        // Counted with the thinking that is on by default: one token less closes it.
        let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
        assert_eq!(count["input_tokens"].as_u64().unwrap(), prompt - 1);
        // In results of tools, on the routes that have them.
        let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
        let output = json!([{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "seen"}]);
        let input = json!([{"role": "user", "content": "x"}, call,
            {"type": "function_call_output", "call_id": "c", "output": output}]);
        served.post("/v1/responses", &json!({"input": input, "max_output_tokens": 2})).await;
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [block, text("seen")]});
        let turns = json!([{"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [result]}]);
        served.post("/v1/messages", &json!({"messages": turns, "max_tokens": 2})).await;
    });
    assert_eq!(served.terminate(), Some(0));
}

/// Sources that are never opened, and what the answer is about.
const REFUSED_SOURCES: [&str; 34] = [
    "",
    "rgb.png",
    "/etc/passwd.png",
    "C:\\pictures\\a.png",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "file:rgb.png",
    "ms://file-1",
    "ftp://example.org/a.png",
    "gopher://127.0.0.1:6379/_x",
    "javascript:alert(1)",
    "data:image/png;base64",
    "data:image/png,abc",
    "data:image/png;base64,",
    "data:image/png;base64,!!!!",
    "data:image/png;base64,AAA",
    "data:text/html;base64,PGh0bWw+",
    "http://127.0.0.1/a.png",
    "http://localhost:1/a.png",
    "http://[::1]/a.png",
    "http://0/a.png",
    "http://0x7f000001/a.png",
    "http://2130706433/a.png",
    "http://017700000001/a.png",
    "http://127.1/a.png",
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://metadata.google.internal/",
    "https://user:secret@example.org/a.png",
    "https://example.org\\@127.0.0.1/a.png",
    "https://example.org:22/a.png",
    "https://example.org/a.png",
    "https://127.0.0.1.nip.io/a.png",
];

#[test]
fn what_is_no_image_is_refused_with_its_place_and_in_little_memory() {
    let served = Served::start(Some(&oracle()), &["vision.max_images=8"]);
    runtime().block_on(async {
        let mut client = Client::connect(served.addr).await;
        assert_eq!(ask(&mut client, CHAT, &with_image(&data_url(&file("images/rgb.png")))).await.status, 200);
        let before = peak_memory(&served);
        let mut refused = 0;
        let mut check = async |body: &Value, place: &str, what: &str| {
            let mut client = Client::connect(served.addr).await;
            let response = ask(&mut client, CHAT, body).await;
            assert_eq!(response.status, 400, "{what}: {}", response.text());
            let error = &response.json()["error"];
            let param = error["param"].as_str().unwrap_or_default();
            assert!(param.starts_with(place), "{what}: {error}");
            // No bytes of the client's in the answer.
            assert!(error["message"].as_str().unwrap().len() < 400, "{what}: {error}");
            refused += 1;
        };
        let place = "messages[0].content[1]";
        for source in REFUSED_SOURCES {
            check(&with_image(source), place, source).await;
        }
        for entry in fs::read_dir(oracle().join("bad")).unwrap() {
            let path = entry.unwrap().path();
            check(&with_image(&data_url(&fs::read(&path).unwrap())), place, &path.display().to_string())
                .await;
        }
        let whole = file("images/rgb.png");
        for end in (0..whole.len()).step_by(whole.len() / 60) {
            check(&with_image(&data_url(&whole[..end])), place, &format!("cut at {end}")).await;
        }
        let one = json!({"type": "image_url", "image_url": {"url": data_url(&whole)}});
        let many = json!({"messages": [{"role": "user", "content": vec![one; 1000]}], "max_tokens": 1});
        check(&many, "messages[0].content[8]", "1,000 images").await;
        let video = json!({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}});
        check(
            &json!({"messages": [{"role": "user", "content": [video]}]}),
            "messages[0].content[0]",
            "video",
        )
        .await;
        assert!(refused > 100, "{refused}");
        let grown = peak_memory(&served) - before;
        assert!(grown < 64 << 20, "{grown} bytes more after {refused} bad images");
        // It still sees.
        assert_eq!(ask(&mut client, CHAT, &with_image(&data_url(&whole))).await.status, 200);
        let page = Client::connect(served.addr).await.get("/metrics").await;
        assert!(page.text().contains("perigee_vision_refused_images_total{reason=\"format\"}"));
        assert!(page.text().contains("perigee_vision_images_total{source=\"encoder\"} 1"));
    });
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn a_model_without_a_tower_says_so() {
    let served = Served::start(Some(&crate::golden::golden_folder("kimi")), &[]);
    runtime().block_on(async {
        let mut client = Client::connect(served.addr).await;
        let response = ask(&mut client, CHAT, &with_image(&data_url(&file("images/rgb.png")))).await;
        assert_eq!(response.status, 400);
        let error = &response.json()["error"];
        assert_eq!(error["param"], "messages[0].content[1]");
        assert!(error["message"].as_str().unwrap().contains("has no vision tower"), "{error}");
        let card = client.get("/v1/models").await.json();
        assert_eq!(card["data"][0]["supports_image_in"], false);
    });
    assert_eq!(served.terminate(), Some(0));
}

/// What the embedded model must reach on held-out pictures, per cent of 25 of each skill; `docs/perigee-nano.md` has the figures of more.
const FLOORS: [(&str, usize); 4] = [("colour", 90), ("count", 70), ("digit", 90), ("shape", 90)];

#[test]
fn the_embedded_model_sees_what_its_card_says() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/nano/heldout_pictures");
    let items = fs::read_to_string(format!("{folder}.jsonl")).unwrap();
    let items: Vec<Value> = items.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let served = Served::start(None, &[]);
    let mut right: std::collections::BTreeMap<&str, (usize, usize)> = Default::default();
    runtime().block_on(async {
        for item in &items {
            let picture = fs::read(format!("{folder}/{}", item["file"].as_str().unwrap())).unwrap();
            let content = json!([{"type": "image_url", "image_url": {"url": data_url(&picture)}},
                {"type": "text", "text": item["question"]}]);
            let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0});
            let answer = served.post(CHAT, &body).await;
            let said = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
            let (hits, all) = right.entry(item["skill"].as_str().unwrap()).or_default();
            *hits += usize::from(said.trim() == item["expect"].as_str().unwrap().trim());
            *all += 1;
        }
    });
    println!("{right:?}");
    for (skill, floor) in FLOORS {
        let (hits, all) = right[skill];
        assert!(100 * hits >= floor * all, "{skill}: {hits} of {all} right, {floor} % wanted");
    }
    assert_eq!(served.terminate(), Some(0));
}
