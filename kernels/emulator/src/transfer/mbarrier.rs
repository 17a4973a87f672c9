//! The mbarrier object as one 64-bit word of shared memory. PTX ISA 9.0, section 9.7.13.15.
//!
//! The word holds the whole state, so that an ordinary store over a barrier, a stale copy or a missing
//! `mbarrier.init` is visible to the next operation on it. Two layouts share the word, high bits first:
//!
//! | layout | mark | phase | expected | pending | tx-count + (2^20 - 1) |
//! |---|---|---|---|---|---|
//! | narrow: both arrival counts below 2^16 | 8 bits, 0x6d | 3 bits | 16 | 16 | 21 |
//! | wide: any other barrier | 2 bits, 0b11 | 1 bit | 20 | 20 | 21 |
//!
//! The narrow mark rejects all but one in 256 arbitrary words; zero and all ones are never a barrier.
//! A narrow barrier knows its phase modulo 8, which tells a token two phases old from a current one;
//! a wide one knows the parity alone.

use std::fmt;

/// Largest expected or pending arrival count.
pub const MAX_COUNT: u32 = (1 << 20) - 1;
/// Largest magnitude of the transaction count.
pub const MAX_TX_COUNT: i32 = (1 << 20) - 1;

const NARROW_MARK: u64 = 0x6d;
const INVALIDATED: u64 = 0x6e << 56;
const TOKEN_MARK: u64 = 0x6f;
const WIDE_MARK: u64 = 0b11;
const NARROW_LIMIT: u32 = 1 << 16;

/// State of one mbarrier. An operation that fails leaves it unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mbarrier {
    expected: u32,
    pending: u32,
    tx_count: i32,
    /// Completed phases, modulo 8 (narrow) or 2 (wide).
    phase: u8,
}

/// What `mbarrier.arrive` returns: the phase before the arrival. Opaque to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    phase: u8,
    wide: bool,
    pending: u32,
}

/// Why an operation on an mbarrier is undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MbarrierError {
    /// The word is not a barrier.
    NotABarrier(u64),
    /// The barrier was invalidated and not initialised again.
    Invalidated,
    /// An `init` or `arrive` count outside 1 to 2^20 - 1.
    CountOutOfRange(u32),
    /// More arrivals than the running phase still expects.
    OverArrival {
        /// Arrivals of this operation.
        count: u32,
        /// Arrivals the phase still expects.
        pending: u32,
    },
    /// `arrive_drop` of more threads than the barrier expects.
    OverDrop {
        /// Threads dropped by this operation.
        count: u32,
        /// Threads the barrier expects in each phase.
        expected: u32,
    },
    /// `cp.async.mbarrier.arrive` without `.noinc` raised the pending count above 2^20 - 1.
    PendingOverflow(u64),
    /// The transaction count left -(2^20 - 1) to 2^20 - 1.
    TxCountOutOfRange(i64),
    /// `arrive.noComplete` ended the phase.
    Completed,
    /// The value is not a token of `mbarrier.arrive`.
    NotAToken(u64),
    /// The token belongs neither to the running nor to the preceding phase.
    TokenTooOld {
        /// Phases completed since the arrival, modulo 8.
        age: u8,
    },
    /// A phase parity other than 0 and 1.
    ParityOutOfRange(u32),
}

impl fmt::Display for MbarrierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotABarrier(word) => {
                write!(f, "no mbarrier here: the word {word:#018x} is uninitialised or overwritten")
            }
            Self::Invalidated => write!(f, "mbarrier used after mbarrier.inval"),
            Self::CountOutOfRange(count) => {
                write!(f, "mbarrier count {count} is outside 1 to {MAX_COUNT}")
            }
            Self::OverArrival { count, pending } => {
                write!(f, "{count} arrivals on an mbarrier whose running phase expects {pending} more")
            }
            Self::OverDrop { count, expected } => {
                write!(f, "arrive_drop of {count} on an mbarrier that expects {expected}")
            }
            Self::PendingOverflow(pending) => {
                write!(f, "mbarrier pending count {pending} is above {MAX_COUNT}")
            }
            Self::TxCountOutOfRange(tx) => {
                write!(f, "mbarrier transaction count {tx} is outside -{MAX_TX_COUNT} to {MAX_TX_COUNT}")
            }
            Self::Completed => write!(f, "mbarrier.arrive.noComplete completed the phase"),
            Self::NotAToken(word) => write!(f, "{word:#018x} is not a state returned by mbarrier.arrive"),
            Self::TokenTooOld { age } => {
                write!(f, "wait on an mbarrier state {age} phases old: only 0 and 1 are defined")
            }
            Self::ParityOutOfRange(parity) => {
                write!(f, "mbarrier phase parity {parity} is neither 0 nor 1")
            }
        }
    }
}

impl std::error::Error for MbarrierError {}

type Result<T> = std::result::Result<T, MbarrierError>;

impl Mbarrier {
    /// `mbarrier.init`: phase 0, `count` arrivals expected, no transactions.
    pub fn init(count: u32) -> Result<Self> {
        check_count(count)?;
        Ok(Self { expected: count, pending: count, tx_count: 0, phase: 0 })
    }

    /// The barrier held by a word of shared memory.
    pub fn from_word(word: u64) -> Result<Self> {
        if word == INVALIDATED {
            return Err(MbarrierError::Invalidated);
        }
        let field = |low: u32, bits: u32| (word >> low) as u32 & ((1 << bits) - 1);
        let (phase, expected, pending, wide) = if word >> 56 == NARROW_MARK {
            (field(53, 3), field(37, 16), field(21, 16), false)
        } else if word >> 62 == WIDE_MARK {
            (field(61, 1), field(41, 20), field(21, 20), true)
        } else {
            return Err(MbarrierError::NotABarrier(word));
        };
        let tx_count = field(0, 21) as i32 - MAX_TX_COUNT;
        let barrier = Self { expected, pending, tx_count, phase: phase as u8 };
        if tx_count > MAX_TX_COUNT || barrier.is_wide() != wide {
            return Err(MbarrierError::NotABarrier(word));
        }
        Ok(barrier)
    }

    /// The word that represents the barrier in shared memory.
    pub fn to_word(self) -> u64 {
        let tx = (self.tx_count + MAX_TX_COUNT) as u64;
        let (expected, pending, phase) = (self.expected as u64, self.pending as u64, self.phase as u64);
        if self.is_wide() {
            WIDE_MARK << 62 | (phase & 1) << 61 | expected << 41 | pending << 21 | tx
        } else {
            NARROW_MARK << 56 | (phase & 7) << 53 | expected << 37 | pending << 21 | tx
        }
    }

    /// `mbarrier.inval`: the word to store. Its memory is plain again.
    pub fn inval(self) -> u64 {
        INVALIDATED
    }

    /// Arrivals that each phase expects.
    pub fn expected(self) -> u32 {
        self.expected
    }

    /// Arrivals that the running phase still expects.
    pub fn pending(self) -> u32 {
        self.pending
    }

    /// Transactions, in bytes, expected and not yet complete. Negative while copies are ahead of `expect_tx`.
    pub fn tx_count(self) -> i32 {
        self.tx_count
    }

    /// Parity of the running phase.
    pub fn parity(self) -> u32 {
        u32::from(self.phase & 1)
    }

    /// `mbarrier.arrive`.
    pub fn arrive(&mut self, count: u32) -> Result<Token> {
        self.update(|barrier| barrier.arrive_on(count))
    }

    /// `mbarrier.arrive.noComplete`: an error if the phase ends.
    pub fn arrive_no_complete(&mut self, count: u32) -> Result<Token> {
        self.update(|barrier| {
            let phase = barrier.phase;
            let token = barrier.arrive_on(count)?;
            if barrier.phase == phase { Ok(token) } else { Err(MbarrierError::Completed) }
        })
    }

    /// `mbarrier.arrive_drop`: later phases expect `count` arrivals less.
    pub fn arrive_drop(&mut self, count: u32) -> Result<Token> {
        self.update(|barrier| {
            barrier.drop_expected(count)?;
            barrier.arrive_on(count)
        })
    }

    /// `mbarrier.arrive.expect_tx`: the transactions are expected before the one arrival.
    pub fn arrive_expect_tx(&mut self, bytes: u32) -> Result<Token> {
        self.update(|barrier| {
            barrier.change_tx(i64::from(bytes))?;
            barrier.arrive_on(1)
        })
    }

    /// `mbarrier.arrive_drop.expect_tx`.
    pub fn arrive_drop_expect_tx(&mut self, bytes: u32) -> Result<Token> {
        self.update(|barrier| {
            barrier.change_tx(i64::from(bytes))?;
            barrier.drop_expected(1)?;
            barrier.arrive_on(1)
        })
    }

    /// `mbarrier.expect_tx`. Never ends a phase.
    pub fn expect_tx(&mut self, bytes: u32) -> Result<()> {
        self.update(|barrier| barrier.change_tx(i64::from(bytes)))
    }

    /// `mbarrier.complete_tx`, and the completion of an asynchronous copy of `bytes`.
    pub fn complete_tx(&mut self, bytes: u32) -> Result<()> {
        self.update(|barrier| {
            barrier.change_tx(-i64::from(bytes))?;
            barrier.complete_phase();
            Ok(())
        })
    }

    /// The increment of `cp.async.mbarrier.arrive` without `.noinc`, which precedes its arrival.
    pub fn raise_pending(&mut self, count: u32) -> Result<()> {
        let pending = u64::from(self.pending) + u64::from(count);
        if pending > u64::from(MAX_COUNT) {
            return Err(MbarrierError::PendingOverflow(pending));
        }
        self.pending = pending as u32;
        Ok(())
    }

    /// `mbarrier.test_wait` and `mbarrier.try_wait`: whether the phase of the token has completed.
    pub fn test_wait(self, token: Token) -> Result<bool> {
        let phases = if self.is_wide() || token.wide { 2 } else { 8 };
        match self.phase.wrapping_sub(token.phase) % phases {
            0 => Ok(false),
            1 => Ok(true),
            age => Err(MbarrierError::TokenTooOld { age }),
        }
    }

    /// `mbarrier.test_wait.parity` and `mbarrier.try_wait.parity`: whether the last phase of this parity
    /// has completed, that is, the running phase has the other one.
    pub fn test_parity(self, parity: u32) -> Result<bool> {
        if parity > 1 {
            return Err(MbarrierError::ParityOutOfRange(parity));
        }
        Ok(self.parity() != parity)
    }

    fn is_wide(self) -> bool {
        self.expected >= NARROW_LIMIT || self.pending >= NARROW_LIMIT
    }

    fn update<T>(&mut self, operation: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let mut next = *self;
        let result = operation(&mut next)?;
        *self = next;
        Ok(result)
    }

    fn arrive_on(&mut self, count: u32) -> Result<Token> {
        check_count(count)?;
        if count > self.pending {
            return Err(MbarrierError::OverArrival { count, pending: self.pending });
        }
        let token = Token { phase: self.phase, wide: self.is_wide(), pending: self.pending };
        self.pending -= count;
        self.complete_phase();
        Ok(token)
    }

    fn drop_expected(&mut self, count: u32) -> Result<()> {
        let expected = self.expected;
        self.expected = expected.checked_sub(count).ok_or(MbarrierError::OverDrop { count, expected })?;
        Ok(())
    }

    fn change_tx(&mut self, bytes: i64) -> Result<()> {
        let tx = i64::from(self.tx_count) + bytes;
        if tx.abs() > i64::from(MAX_TX_COUNT) {
            return Err(MbarrierError::TxCountOutOfRange(tx));
        }
        self.tx_count = tx as i32;
        Ok(())
    }

    fn complete_phase(&mut self) {
        if self.pending == 0 && self.tx_count == 0 {
            self.phase = (self.phase + 1) % 8;
            self.pending = self.expected;
        }
    }
}

impl Token {
    /// The token in a 64-bit register.
    pub fn to_word(self) -> u64 {
        TOKEN_MARK << 56 | u64::from(self.phase) << 53 | u64::from(self.wide) << 52 | u64::from(self.pending)
    }

    /// The token held by a 64-bit register.
    pub fn from_word(word: u64) -> Result<Self> {
        let token = Self {
            phase: (word >> 53) as u8 & 7,
            wide: word >> 52 & 1 == 1,
            pending: word as u32 & MAX_COUNT,
        };
        if token.to_word() == word { Ok(token) } else { Err(MbarrierError::NotAToken(word)) }
    }

    /// `mbarrier.pending_count`: arrivals the phase expected before this one.
    pub fn pending_count(self) -> u32 {
        self.pending
    }
}

fn check_count(count: u32) -> Result<()> {
    if (1..=MAX_COUNT).contains(&count) { Ok(()) } else { Err(MbarrierError::CountOutOfRange(count)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Golden {
        traces: Vec<Trace>,
    }

    #[derive(Deserialize)]
    struct Trace {
        name: String,
        steps: Vec<Step>,
    }

    #[derive(Deserialize)]
    struct Step {
        op: String,
        value: u32,
        phase: u8,
        pending: u32,
        tx: i32,
        wait_parity_0: bool,
        wait_parity_1: bool,
    }

    #[test]
    fn golden_traces() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/mbarrier.json");
        let text = std::fs::read_to_string(path).unwrap();
        let golden: Golden = serde_json::from_str(&text).unwrap();
        assert!(!golden.traces.is_empty());
        for trace in &golden.traces {
            let mut word = 0;
            for (index, step) in trace.steps.iter().enumerate() {
                let at = format!("{}, step {index}: {} {}", trace.name, step.op, step.value);
                let barrier = if step.op == "init" {
                    Mbarrier::init(step.value).unwrap()
                } else {
                    let mut barrier = Mbarrier::from_word(word).unwrap();
                    match step.op.as_str() {
                        "arrive" => drop(barrier.arrive(step.value).unwrap()),
                        "arrive_expect_tx" => drop(barrier.arrive_expect_tx(step.value).unwrap()),
                        "expect_tx" => barrier.expect_tx(step.value).unwrap(),
                        "complete_tx" => barrier.complete_tx(step.value).unwrap(),
                        other => panic!("unknown operation {other}"),
                    }
                    barrier
                };
                assert_eq!(barrier.phase, step.phase, "{at}");
                assert_eq!(barrier.pending(), step.pending, "{at}");
                assert_eq!(barrier.tx_count(), step.tx, "{at}");
                assert_eq!(barrier.test_parity(0).unwrap(), step.wait_parity_0, "{at}");
                assert_eq!(barrier.test_parity(1).unwrap(), step.wait_parity_1, "{at}");
                word = barrier.to_word();
                assert_eq!(Mbarrier::from_word(word), Ok(barrier), "{at}");
            }
        }
    }

    #[test]
    fn words_hold_the_whole_range() {
        for expected in [0, 1, 2, 65535, 65536, MAX_COUNT] {
            for pending in [0, 1, 65535, 65536, MAX_COUNT] {
                for tx_count in [-MAX_TX_COUNT, -1, 0, 1, MAX_TX_COUNT] {
                    for phase in 0..8 {
                        let mut barrier = Mbarrier { expected, pending, tx_count, phase };
                        if barrier.is_wide() {
                            barrier.phase &= 1;
                        }
                        assert_eq!(Mbarrier::from_word(barrier.to_word()), Ok(barrier));
                    }
                }
            }
        }
    }

    #[test]
    fn plain_data_is_not_a_barrier() {
        let words = [0, u64::MAX, 1, 0x3f80_0000_3f80_0000, 0x7fc0_7fc0_7fc0_7fc0, 0xbf80_0000_bf80_0000];
        for word in words {
            assert_eq!(Mbarrier::from_word(word), Err(MbarrierError::NotABarrier(word)));
        }
        let barrier = Mbarrier::init(1).unwrap();
        assert_eq!(Mbarrier::from_word(barrier.inval()), Err(MbarrierError::Invalidated));
        assert_eq!(Token::from_word(barrier.to_word()), Err(MbarrierError::NotAToken(barrier.to_word())));
    }

    #[test]
    fn tokens_tell_the_running_phase_from_older_ones() {
        let mut barrier = Mbarrier::init(2).unwrap();
        let first = barrier.arrive(1).unwrap();
        assert_eq!(Token::from_word(first.to_word()), Ok(first));
        assert_eq!(first.pending_count(), 2);
        assert_eq!(barrier.test_wait(first), Ok(false));
        let second = barrier.arrive(1).unwrap();
        assert_eq!(second.pending_count(), 1);
        assert_eq!(barrier.test_wait(first), Ok(true));
        assert_eq!(barrier.test_wait(second), Ok(true));
        let third = barrier.arrive(2).unwrap();
        assert_eq!(barrier.test_wait(third), Ok(true));
        assert_eq!(barrier.test_wait(first), Err(MbarrierError::TokenTooOld { age: 2 }));
        for _ in 0..6 {
            barrier.arrive(2).unwrap();
        }
        // Eight phases later a phase number repeats.
        assert_eq!(barrier.test_wait(first), Ok(false));

        let mut wide = Mbarrier::init(MAX_COUNT).unwrap();
        let token = wide.arrive(MAX_COUNT).unwrap();
        assert_eq!(wide.test_wait(token), Ok(true));
        wide = Mbarrier::from_word(wide.to_word()).unwrap();
        assert_eq!(wide.test_wait(token), Ok(true));
    }

    #[test]
    fn dropped_threads_are_missing_from_later_phases() {
        let mut barrier = Mbarrier::init(3).unwrap();
        barrier.arrive_drop(1).unwrap();
        assert_eq!((barrier.expected(), barrier.pending()), (2, 2));
        barrier.arrive(2).unwrap();
        assert_eq!((barrier.pending(), barrier.parity()), (2, 1));
        barrier.arrive_drop_expect_tx(16).unwrap();
        barrier.arrive(1).unwrap();
        assert_eq!((barrier.pending(), barrier.parity()), (0, 1));
        barrier.complete_tx(16).unwrap();
        assert_eq!((barrier.pending(), barrier.parity()), (1, 0));
        barrier.arrive_drop(1).unwrap();
        assert_eq!((barrier.expected(), barrier.pending(), barrier.parity()), (0, 0, 1));
        assert_eq!(barrier.arrive(1), Err(MbarrierError::OverArrival { count: 1, pending: 0 }));
    }

    #[test]
    fn asynchronous_copies_raise_and_arrive() {
        let mut barrier = Mbarrier::init(1).unwrap();
        barrier.raise_pending(32).unwrap();
        barrier.arrive(1).unwrap();
        for _ in 0..32 {
            assert_eq!(barrier.parity(), 0);
            barrier.arrive(1).unwrap();
        }
        assert_eq!((barrier.pending(), barrier.parity()), (1, 1));
        let beyond = u64::from(MAX_COUNT) + 1;
        assert_eq!(barrier.raise_pending(MAX_COUNT), Err(MbarrierError::PendingOverflow(beyond)));
    }

    #[test]
    fn undefined_operations_are_refused_and_change_nothing() {
        use MbarrierError::*;
        assert_eq!(Mbarrier::init(0), Err(CountOutOfRange(0)));
        assert_eq!(Mbarrier::init(1 << 20), Err(CountOutOfRange(1 << 20)));
        let mut barrier = Mbarrier::init(2).unwrap();
        let before = barrier;
        assert_eq!(barrier.arrive(3), Err(OverArrival { count: 3, pending: 2 }));
        assert_eq!(barrier.arrive(0), Err(CountOutOfRange(0)));
        assert_eq!(barrier.arrive_drop(3), Err(OverDrop { count: 3, expected: 2 }));
        assert_eq!(barrier.arrive_no_complete(2), Err(Completed));
        assert_eq!(barrier.expect_tx(1 << 20), Err(TxCountOutOfRange(1 << 20)));
        assert_eq!(barrier.complete_tx(1 << 20), Err(TxCountOutOfRange(-(1 << 20))));
        assert_eq!(barrier.arrive_expect_tx(u32::MAX), Err(TxCountOutOfRange(i64::from(u32::MAX))));
        assert_eq!(barrier.test_parity(2), Err(ParityOutOfRange(2)));
        assert_eq!(barrier, before);
        assert_eq!(
            OverArrival { count: 3, pending: 2 }.to_string(),
            "3 arrivals on an mbarrier whose running phase expects 2 more"
        );
    }
}
