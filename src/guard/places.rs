//! A few places, each empty or taken: what is followed keeps its place, so that what is known of it can lie at the same one elsewhere.

/// Places.
pub(super) const PLACES: usize = 8;

/// One value per place that is taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Places<T> {
    values: [T; PLACES],
    /// A bit for each place that is taken.
    taken: u8,
}

impl<T> Places<T> {
    /// The value at a place.
    pub(super) fn at(&self, place: usize) -> Option<&T> {
        (self.taken >> place & 1 == 1).then(|| &self.values[place])
    }

    /// Takes a place.
    pub(super) fn set(&mut self, place: usize, value: T) {
        self.values[place] = value;
        self.taken |= 1 << place;
    }

    /// Empties a place.
    pub(super) fn remove(&mut self, place: usize) {
        self.taken &= !(1 << place);
    }

    /// Empties the places whose value is not to be kept.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(usize, &mut T) -> bool) {
        for place in bits(self.taken) {
            if !keeps(place, &mut self.values[place]) {
                self.remove(place);
            }
        }
    }

    /// The first place that is empty.
    pub(super) fn free(&self) -> Option<usize> {
        bits(!self.taken).next()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// The values, each with its place.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        bits(self.taken).map(|place| (place, &self.values[place]))
    }

    /// The same.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let taken = self.taken;
        self.values.iter_mut().enumerate().filter(move |(place, _)| taken >> place & 1 == 1)
    }
}

/// The places of the bits that are set.
fn bits(mut set: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (place < PLACES).then_some(place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_kept_and_emptied() {
        let mut places = Places::<u32>::default();
        assert!(places.is_empty() && places.at(3).is_none());
        (0..PLACES).for_each(|place| places.set(place, place as u32 * 10));
        assert_eq!((places.free(), places.at(3)), (None, Some(&30)));
        places.retain(|place, value| {
            *value += 1;
            place % 3 == 0
        });
        assert_eq!(places.iter().collect::<Vec<_>>(), [(0, &1), (3, &31), (6, &61)]);
        assert_eq!(places.free(), Some(1));
        places.iter_mut().for_each(|(place, value)| *value = place as u32);
        assert_eq!(places.at(6), Some(&6));
    }
}
