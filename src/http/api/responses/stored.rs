//! Responses that their clients can come back to: in memory, bounded, and each client's own.
//!
//! A response is reached with the key that asked for it and no other. The oldest ones make room for new
//! ones. A response holds those that it goes on from, so that a chain stays whole whatever is forgotten or
//! deleted in its middle.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::Notify;

use super::super::ApiError;

/// Most responses that go on from one another.
const MAX_CHAIN: usize = 1024;
/// Bytes that a response is taken for beside its text.
const OVERHEAD_BYTES: usize = 1024;

/// The client that asked for a response: the digest of its key, or nobody where no keys are set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Owner(pub Option<[u8; 32]>);

/// The stored responses of all clients.
#[derive(Debug, Default)]
pub(in super::super) struct StoredResponses {
    max_bytes: usize,
    /// Bytes of all turns that something holds.
    bytes: Arc<AtomicUsize>,
    shelves: Mutex<Shelves>,
}

#[derive(Debug, Default)]
struct Shelves {
    turns: HashMap<(Owner, String), Arc<Turn>>,
    /// Keys of `turns`, oldest first. Keys without a turn were deleted.
    order: VecDeque<(Owner, String)>,
}

/// A request and its response.
#[derive(Debug)]
pub(in super::super) struct Turn {
    previous: Option<Arc<Turn>>,
    /// Responses before this one.
    depth: usize,
    /// Bytes of this turn and of those before it.
    chain_bytes: usize,
    /// JSON of the input items.
    input: Vec<u8>,
    /// JSON of the response.
    response: Vec<u8>,
    /// Told when the work on the response is to end; `None`: it has ended.
    work: Option<Arc<Notify>>,
    bytes: Arc<AtomicUsize>,
}

/// The responses of one client.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Shelf {
    stored: Arc<StoredResponses>,
    owner: Owner,
}

/// What a response that is under way is stored with.
#[derive(Debug, Clone)]
pub(in super::super) struct Keep {
    shelf: Shelf,
    previous: Option<Arc<Turn>>,
    input: Vec<u8>,
}

/// A stored response that is worked on in the background. One that is dropped before its end is forgotten.
#[derive(Debug)]
pub(in super::super) struct Begun {
    keep: Keep,
    id: String,
    turn: Arc<Turn>,
}

/// What a response has grown to is more than a chain may take.
#[derive(Debug)]
pub(in super::super) struct TooLarge;

impl StoredResponses {
    /// At most `max_bytes` of text; 0 stores nothing.
    pub(in super::super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// The responses of one client.
    pub(in super::super) fn of(self: &Arc<Self>, owner: Owner) -> Shelf {
        Shelf { stored: self.clone(), owner }
    }

    fn lock(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest responses out until what is held fits; those that are worked on stay.
    fn make_room(&self, shelves: &mut Shelves) {
        for _ in 0..shelves.order.len() {
            if self.bytes.load(Ordering::Relaxed) <= self.max_bytes {
                return;
            }
            let Some(oldest) = shelves.order.pop_front() else { return };
            match shelves.turns.get(&oldest).is_some_and(|turn| turn.is_in_progress()) {
                true => shelves.order.push_back(oldest),
                false => drop(shelves.turns.remove(&oldest)),
            }
        }
    }

    fn insert(&self, shelves: &mut Shelves, key: (Owner, String), turn: Arc<Turn>) {
        if shelves.turns.insert(key.clone(), turn).is_some() {
            shelves.order.retain(|other| *other != key);
        }
        shelves.order.push_back(key);
        self.make_room(shelves);
    }
}

impl Shelf {
    /// Whether anything is stored.
    pub(super) fn is_open(&self) -> bool {
        self.stored.max_bytes > 0
    }

    /// The turn of a response.
    pub(in super::super) fn get(&self, id: &str) -> Option<Arc<Turn>> {
        self.stored.lock().turns.get(&(self.owner, id.to_owned())).cloned()
    }

    /// Forgets a response, and ends the work on it; `false` if there is none.
    pub(in super::super) fn delete(&self, id: &str) -> bool {
        let key = (self.owner, id.to_owned());
        let mut shelves = self.stored.lock();
        shelves.order.retain(|other| *other != key);
        let turn = shelves.turns.remove(&key);
        turn.as_ref().and_then(|turn| turn.work.as_ref()).into_iter().for_each(|work| work.notify_one());
        turn.is_some()
    }

    /// Ends the work on a response, which is `cancelled` from then on; one that has ended stays as it is. Gives
    /// the response. Errors: 404; 400, it was never in the background.
    pub(in super::super) fn cancel(&self, id: &str) -> Result<Arc<Turn>, ApiError> {
        let key = (self.owner, id.to_owned());
        let mut shelves = self.stored.lock();
        let turn = shelves.turns.get(&key).ok_or_else(|| ApiError::unknown_response(None, id))?.clone();
        let mut response: Value = serde_json::from_slice(&turn.response).unwrap_or_default();
        let Some(work) = &turn.work else {
            return match response["background"] == true {
                true => Ok(turn),
                false => Err(ApiError::not_in_background(id)),
            };
        };
        response["status"] = "cancelled".into();
        let keep = Keep { shelf: self.clone(), previous: turn.previous.clone(), input: turn.input.clone() };
        let cancelled = Arc::new(keep.turn(response.to_string().into_bytes(), None));
        self.stored.insert(&mut shelves, key, cancelled.clone());
        work.notify_one();
        Ok(cancelled)
    }

    /// What a response to these items is stored with. `None` where nothing is stored, and behind a chain of
    /// the greatest length.
    pub(super) fn keep(&self, previous: Option<Arc<Turn>>, input: &[Value]) -> Option<Keep> {
        let fits = previous.as_ref().is_none_or(|previous| previous.depth + 1 < MAX_CHAIN);
        let input = (self.is_open() && fits).then(|| serde_json::to_vec(input).ok())??;
        Some(Keep { shelf: self.clone(), previous, input })
    }
}

impl Keep {
    /// Stores the response. A chain that would take more than half of the room is not stored: it would push
    /// out the responses of all others.
    pub(in super::super) fn put(self, id: &str, response: Vec<u8>) {
        let turn = self.turn(response, None);
        let Shelf { stored, owner } = self.shelf;
        if turn.chain_bytes <= stored.max_bytes / 2 {
            stored.insert(&mut stored.lock(), (owner, id.to_owned()), Arc::new(turn));
        }
    }

    /// Stores a response that is worked on in the background. Errors: 400, the id is that of another one; 503,
    /// those in the background fill half of the room.
    pub(in super::super) fn begin(self, id: &str, response: Vec<u8>) -> Result<Begun, ApiError> {
        let turn = Arc::new(self.turn(response, Some(Arc::default())));
        let Shelf { stored, owner } = &self.shelf;
        let mut shelves = stored.lock();
        let key = (*owner, id.to_owned());
        if shelves.turns.get(&key).is_some_and(|turn| turn.is_in_progress()) {
            return Err(ApiError::response_in_progress(None, id));
        }
        let in_progress = shelves.turns.values().filter(|turn| turn.is_in_progress());
        let bytes: usize = in_progress.map(|turn| turn.chain_bytes).sum();
        if bytes + turn.chain_bytes > stored.max_bytes / 2 {
            return Err(ApiError::no_room_in_background(stored.max_bytes));
        }
        stored.insert(&mut shelves, key, turn.clone());
        drop(shelves);
        Ok(Begun { id: id.to_owned(), turn, keep: self })
    }

    fn turn(&self, response: Vec<u8>, work: Option<Arc<Notify>>) -> Turn {
        let Self { shelf: Shelf { stored, .. }, previous, input } = self;
        let own_bytes = input.len() + response.len() + OVERHEAD_BYTES;
        stored.bytes.fetch_add(own_bytes, Ordering::Relaxed);
        Turn {
            previous: previous.clone(),
            depth: previous.as_ref().map_or(0, |previous| previous.depth + 1),
            chain_bytes: own_bytes + previous.as_ref().map_or(0, |previous| previous.chain_bytes),
            input: input.clone(),
            response,
            work,
            bytes: stored.bytes.clone(),
        }
    }
}

impl Begun {
    /// Resolves when the response was cancelled or deleted.
    pub(in super::super) async fn cancelled(&self) {
        if let Some(work) = &self.turn.work {
            work.notified().await;
        }
    }

    /// Stores the response that the work ended with, unless it was cancelled or deleted.
    pub(in super::super) fn end(&self, response: Vec<u8>) -> Result<(), TooLarge> {
        let Shelf { stored, .. } = &self.keep.shelf;
        let ended = self.keep.turn(response, None);
        if ended.chain_bytes > stored.max_bytes / 2 {
            return Err(TooLarge);
        }
        let mut shelves = stored.lock();
        if self.is_stored(&shelves) {
            stored.insert(&mut shelves, self.key(), Arc::new(ended));
        }
        Ok(())
    }

    fn key(&self) -> (Owner, String) {
        (self.keep.shelf.owner, self.id.clone())
    }

    fn is_stored(&self, shelves: &Shelves) -> bool {
        shelves.turns.get(&self.key()).is_some_and(|turn| Arc::ptr_eq(turn, &self.turn))
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut shelves = self.keep.shelf.stored.lock();
        if self.is_stored(&shelves) {
            let key = self.key();
            shelves.order.retain(|other| *other != key);
            shelves.turns.remove(&key);
        }
    }
}

impl Turn {
    /// The response.
    pub(in super::super) fn response(&self) -> &[u8] {
        &self.response
    }

    /// Whether the response is still worked on.
    pub(super) fn is_in_progress(&self) -> bool {
        self.work.is_some()
    }

    /// The items of the conversation, oldest first: what was said up to this turn, and its own input.
    pub(in super::super) fn input_items(&self) -> Vec<Value> {
        let mut items = self.previous.as_ref().map(|previous| previous.items()).unwrap_or_default();
        items.extend(list(&self.input));
        items
    }

    /// The items of the conversation with the response's own at the end.
    pub(super) fn items(&self) -> Vec<Value> {
        let mut turns = vec![self];
        while let Some(previous) = turns[turns.len() - 1].previous.as_deref() {
            turns.push(previous);
        }
        let mut items = Vec::new();
        for turn in turns.into_iter().rev() {
            items.extend(list(&turn.input));
            let response: Value = serde_json::from_slice(&turn.response).unwrap_or_default();
            items.extend(response["output"].as_array().into_iter().flatten().cloned());
        }
        items
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.input.len() + self.response.len() + OVERHEAD_BYTES, Ordering::Relaxed);
    }
}

/// The values of a list that was written here.
fn list(json: &[u8]) -> Vec<Value> {
    serde_json::from_slice(json).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ADA: Owner = Owner(Some([1; 32]));
    const BOB: Owner = Owner(Some([2; 32]));

    fn response(text: &str) -> Vec<u8> {
        json!({"output": [{"type": "message", "role": "assistant", "content": text}]})
            .to_string()
            .into_bytes()
    }

    fn put(shelf: &Shelf, id: &str, previous: Option<&str>, text: &str) {
        let previous = previous.map(|id| shelf.get(id).unwrap());
        shelf.keep(previous, &[json!({"role": "user", "content": id})]).unwrap().put(id, response(text));
    }

    #[test]
    fn nobody_reads_anothers_response() {
        let stored = Arc::new(StoredResponses::new(1 << 20));
        let (ada, bob, nobody) = (stored.of(ADA), stored.of(BOB), stored.of(Owner::default()));
        put(&ada, "a", None, "secret");
        assert!(ada.get("a").is_some() && bob.get("a").is_none() && nobody.get("a").is_none());
        assert!(!bob.delete("a") && !nobody.delete("a"));
        put(&bob, "a", None, "other");
        assert!(String::from_utf8_lossy(ada.get("a").unwrap().response()).contains("secret"));
        assert!(ada.delete("a") && !ada.delete("a") && bob.get("a").is_some());
    }

    #[test]
    fn a_chain_stays_whole_when_its_middle_is_deleted() {
        let shelf = Arc::new(StoredResponses::new(1 << 20)).of(ADA);
        put(&shelf, "a", None, "A");
        put(&shelf, "b", Some("a"), "B");
        put(&shelf, "c", Some("b"), "C");
        assert!(shelf.delete("b"));
        let said = |items: Vec<Value>| -> Vec<String> {
            items.iter().map(|item| item["content"].as_str().unwrap().to_owned()).collect()
        };
        let turn = shelf.get("c").unwrap();
        assert_eq!(said(turn.items()), ["a", "A", "b", "B", "c", "C"]);
        assert_eq!(said(turn.input_items()), ["a", "A", "b", "B", "c"]);
    }

    #[test]
    fn what_is_held_is_bounded_and_the_oldest_goes_first() {
        let stored = Arc::new(StoredResponses::new(8 * (OVERHEAD_BYTES + 200)));
        let shelf = stored.of(ADA);
        let id = |number: usize| format!("r{number}");
        for number in 0..100usize {
            let previous = number.checked_sub(1).filter(|_| number % 4 > 0).map(id);
            put(&shelf, &id(number), previous.as_deref(), "x");
            assert!(stored.bytes.load(Ordering::Relaxed) <= stored.max_bytes, "{number}");
        }
        assert!(shelf.get(&id(99)).is_some() && shelf.get(&id(80)).is_none());
        put(&shelf, "large", None, &"x".repeat(stored.max_bytes));
        assert!(shelf.get("large").is_none() && shelf.get(&id(99)).is_some());
        for number in 0..100 {
            shelf.delete(&id(number));
        }
        assert_eq!(stored.bytes.load(Ordering::Relaxed), 0);
        assert!(stored.lock().order.is_empty());
        assert!(Shelf::default().keep(None, &[]).is_none(), "no room, no storing");
    }

    fn begin(shelf: &Shelf, id: &str, text: &str) -> Result<Begun, ApiError> {
        shelf.keep(None, &[json!({"role": "user", "content": id})]).unwrap().begin(id, response(text))
    }

    #[tokio::test]
    async fn what_is_worked_on_stays_until_it_ends() {
        let stored = Arc::new(StoredResponses::new(8 * (OVERHEAD_BYTES + 200)));
        let shelf = stored.of(ADA);
        let first = begin(&shelf, "first", "x").unwrap();
        let error = begin(&shelf, "first", "x").unwrap_err();
        assert_eq!((error.status, error.code), (400, "response_in_progress"));
        let more: Vec<Begun> = ["2", "3"].map(|id| begin(&shelf, id, "x").unwrap()).into();
        let error = begin(&shelf, "full", &"x".repeat(OVERHEAD_BYTES)).unwrap_err();
        assert_eq!((error.status, error.code), (503, "too_many_in_background"));
        for number in 0..100 {
            put(&shelf, &format!("r{number}"), None, "x");
        }
        assert!(shelf.get("first").is_some_and(|turn| turn.is_in_progress()));
        assert!(first.end("x".repeat(stored.max_bytes).into()).is_err(), "too large");
        first.end(response("done")).unwrap();
        assert!(String::from_utf8_lossy(shelf.get("first").unwrap().response()).contains("done"));
        drop(first);
        assert!(shelf.get("first").is_some());
        // Cancelled: what the work ends with is too late.
        let cancelled = shelf.cancel("2").unwrap();
        assert!(String::from_utf8_lossy(cancelled.response()).contains("cancelled"));
        more[0].cancelled().await;
        more[0].end(response("late")).unwrap();
        assert!(shelf.delete("3"));
        more[1].cancelled().await;
        more[1].end(response("late")).unwrap();
        assert!(shelf.get("3").is_none());
        assert!(String::from_utf8_lossy(shelf.get("2").unwrap().response()).contains("cancelled"));
        let lost = begin(&shelf, "lost", "x").unwrap();
        drop(lost);
        assert!(shelf.get("lost").is_none());
        drop(more);
        let held = stored.lock().turns.values().map(|turn| turn.chain_bytes).sum::<usize>();
        assert_eq!(stored.bytes.load(Ordering::Relaxed), held);
    }

    #[test]
    fn a_chain_has_a_greatest_length() {
        let shelf = Arc::new(StoredResponses::new(1 << 30)).of(ADA);
        put(&shelf, "0", None, "x");
        for number in 1..MAX_CHAIN {
            put(&shelf, &number.to_string(), Some(&(number - 1).to_string()), "x");
        }
        let last = shelf.get(&(MAX_CHAIN - 1).to_string());
        assert!(shelf.keep(last, &[]).is_none());
    }
}
