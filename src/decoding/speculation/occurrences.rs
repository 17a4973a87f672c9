//! Earlier places of a text that end like a given one.
//!
//! Hash chains, as in LZ77: every position knows the position before it whose last tokens have the
//! same hash. Two chains, one of long and one of short grams: a short gram may have thousands of
//! places, of which a search visits the latest, and the one that matters has a long match. Adding a
//! token is O(1). The text stays with its owner.

/// No position.
const NONE: u32 = u32::MAX;
/// Tokens of the long gram.
const LONG: usize = 4;
/// Most positions of a chain that a search visits.
const MAX_VISITS: usize = 64;
/// Most places that a search returns.
const MAX_PLACES: usize = 32;

/// A place like the end of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Index of the token that follows the place.
    pub(super) next: usize,
    /// Equal tokens before it, up to [`Occurrences::MAX_MATCH`].
    pub(super) matched: usize,
}

/// Index of the positions of one growing text.
#[derive(Debug)]
pub struct Occurrences {
    /// The longer gram first.
    chains: Vec<Chain>,
    len: usize,
}

/// Positions by the hash of their last `gram` tokens.
#[derive(Debug)]
struct Chain {
    gram: usize,
    /// Latest position of each hash; a power of two.
    heads: Vec<u32>,
    /// For each indexed position the one before it with the same hash.
    previous: Vec<u32>,
}

impl Occurrences {
    /// Most tokens that are compared before a place.
    pub const MAX_MATCH: usize = 32;

    /// An empty index of places with at least `gram` equal tokens, 1 to [`Self::MAX_MATCH`].
    pub fn new(gram: usize) -> Self {
        let chain = |gram| Chain { gram, heads: Vec::new(), previous: Vec::new() };
        let grams = [gram.max(LONG), gram];
        Self { chains: grams[usize::from(gram >= LONG)..].iter().map(|gram| chain(*gram)).collect(), len: 0 }
    }

    /// Tokens indexed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is indexed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all positions.
    pub fn clear(&mut self) {
        self.len = 0;
        for chain in &mut self.chains {
            chain.heads.clear();
            chain.previous.clear();
        }
    }

    /// Indexes `text[self.len()..]`, at most `limit` tokens of it. `text` begins with the tokens of
    /// the earlier calls.
    pub fn extend(&mut self, text: &[u32], limit: usize) {
        self.len = text.len().min(self.len.saturating_add(limit)).min(NONE as usize);
        for chain in &mut self.chains {
            chain.extend(&text[..self.len]);
        }
    }

    /// Places in the indexed `text` that end like `end`, latest first, each with a token behind it:
    /// those of the longest gram that has any. `end` may be the text itself.
    pub(super) fn find(&self, text: &[u32], end: &[u32], places: &mut Vec<Place>) {
        places.clear();
        for chain in &self.chains {
            chain.find(text, end, places);
            if !places.is_empty() {
                return;
            }
        }
    }
}

impl Chain {
    fn extend(&mut self, text: &[u32]) {
        if text.len() > self.heads.len() {
            self.grow(text);
        }
        for position in self.previous.len()..text.len() {
            let before = self.place(text, position);
            self.previous.push(before);
        }
    }

    /// Doubles the hash table until it has a bucket per token, and chains all positions anew.
    fn grow(&mut self, text: &[u32]) {
        self.heads.clear();
        self.heads.resize(text.len().next_power_of_two().max(256), NONE);
        for position in 0..self.previous.len() {
            self.previous[position] = self.place(text, position);
        }
    }

    /// Makes `position` the latest of its hash; returns the one before it.
    fn place(&mut self, text: &[u32], position: usize) -> u32 {
        match (position + 1).checked_sub(self.gram) {
            Some(first) => {
                let bucket = self.bucket(&text[first..=position]);
                std::mem::replace(&mut self.heads[bucket], position as u32)
            }
            None => NONE,
        }
    }

    fn bucket(&self, gram: &[u32]) -> usize {
        // Multiplicative hashing; the constant is 2^64 divided by the golden ratio.
        let hash = gram.iter().fold(0u64, |hash, &token| {
            (hash.rotate_left(23) ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        (hash >> 32) as usize & (self.heads.len() - 1)
    }

    /// Appends the places of the gram that ends `end`.
    fn find(&self, text: &[u32], end: &[u32], places: &mut Vec<Place>) {
        if end.len() < self.gram || self.heads.is_empty() {
            return;
        }
        let mut at = self.heads[self.bucket(&end[end.len() - self.gram..])];
        for _ in 0..MAX_VISITS {
            if at == NONE || places.len() == MAX_PLACES {
                return;
            }
            let next = at as usize + 1;
            let equal = text[..next].iter().rev().zip(end.iter().rev()).take(Occurrences::MAX_MATCH);
            let matched = equal.take_while(|(a, b)| a == b).count();
            if matched >= self.gram && next < text.len() {
                places.push(Place { next, matched });
            }
            at = self.previous[at as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places_of(text: &[u32], gram: usize) -> Vec<Place> {
        let mut index = Occurrences::new(gram);
        index.extend(text, usize::MAX);
        let mut places = Vec::new();
        index.find(text, text, &mut places);
        places
    }

    #[test]
    fn every_earlier_place_is_found_with_its_whole_match() {
        //          0  1  2  3  4  5  6  7  8  9
        let text = [1, 2, 3, 9, 7, 2, 3, 8, 2, 3];
        assert_eq!(places_of(&text, 2), [Place { next: 7, matched: 2 }, Place { next: 3, matched: 2 }]);
        let text = [4, 1, 2, 3, 5, 4, 1, 2, 3];
        assert_eq!(places_of(&text, 2), [Place { next: 4, matched: 4 }]);
        assert_eq!(places_of(&[1, 2, 3], 2), []);
        assert_eq!(places_of(&[1], 2), []);
    }

    #[test]
    fn pieces_and_growth_change_nothing() {
        let mut rng = fastrand::Rng::with_seed(1);
        let text: Vec<u32> = (0..3000).map(|_| rng.u32(..6)).collect();
        let mut pieces = Occurrences::new(3);
        while pieces.len() < text.len() {
            pieces.extend(&text, rng.usize(..40));
        }
        let (mut whole, mut found) = (places_of(&text, 3), Vec::new());
        pieces.find(&text, &text, &mut found);
        assert_eq!(whole, found);
        // Against the definition: the latest places first, as many as a search visits.
        let ends_alike = |next: usize, gram: usize| text[next - gram..next] == text[text.len() - gram..];
        let gram = if (4..text.len()).any(|next| ends_alike(next, 4)) { 4 } else { 3 };
        let brute = (gram..text.len()).rev().filter(|&next| ends_alike(next, gram));
        whole.truncate(8);
        let whole: Vec<usize> = whole.iter().map(|place| place.next).collect();
        assert_eq!(whole, brute.take(8).collect::<Vec<_>>());
        pieces.clear();
        pieces.find(&text, &text, &mut found);
        assert!(found.is_empty() && pieces.is_empty());
    }

    #[test]
    fn a_long_match_is_found_behind_thousands_of_short_ones() {
        let mut text = vec![5, 6, 7, 1, 8];
        text.extend((0..5000).flat_map(|i| [1, 100 + i]));
        text.extend([5, 6, 7, 1]);
        assert_eq!(places_of(&text, 1), [Place { next: 4, matched: 4 }]);
        text[0] = 9;
        assert_eq!(places_of(&text, 1).len(), MAX_PLACES, "the latest of the short ones");
    }

    #[test]
    fn a_search_in_another_text_compares_with_that_text() {
        let text = [5, 6, 7, 8, 9];
        let mut index = Occurrences::new(2);
        index.extend(&text, usize::MAX);
        let mut places = Vec::new();
        index.find(&text, &[1, 6, 7], &mut places);
        assert_eq!(places, [Place { next: 3, matched: 2 }]);
        index.find(&text, &[8, 9], &mut places);
        assert_eq!(places, [], "nothing follows");
    }
}
