//! Moments of time as text: UTC in the form of RFC 3339, cut where it is precise enough. Of two texts the smaller one is
//! earlier, also where one is only a month, a day or an hour: it then stands for its beginning.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use perigee_text::{civil, days_from_civil};

const DAY_S: u64 = 86_400;

/// The form that texts are cut from.
const FORM: &[u8; 19] = b"0000-00-00T00:00:00";

/// Lengths at which a moment may end: a month, a day, an hour, a minute, a second.
const LENGTHS: [usize; 5] = [7, 10, 13, 16, 19];

/// The moment with milliseconds, such as `2026-12-01T08:30:00.250Z`.
pub(super) fn text(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil((since.as_secs() / DAY_S) as i64);
    let (seconds, milliseconds) = (since.as_secs() % DAY_S, since.subsec_millis());
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

/// What a person wrote, to be compared with others; `None`: it is no moment. A `Z` at the end is left out.
pub(super) fn read(written: &str) -> Option<String> {
    let text = written.strip_suffix(['Z', 'z']).unwrap_or(written);
    let fits = |(found, form): (u8, &u8)| match form {
        b'0' => found.is_ascii_digit(),
        b'T' => matches!(found, b'T' | b't' | b' '),
        form => found == *form,
    };
    if !LENGTHS.contains(&text.len()) || !text.bytes().zip(FORM).all(fits) {
        return None;
    }
    let number = |at: usize| text.get(at..at + 2).map_or(0, |digits| digits.parse().unwrap_or(99));
    let (year, month) = (text[..4].parse::<i64>().ok()?, number(5));
    let day = if text.len() > 7 { number(8) } else { 1 };
    let is_day = civil(days_from_civil(year, month, day)) == (year, month, day);
    (is_day && number(11) < 24 && number(14) < 60 && number(17) < 60).then(|| {
        let mut text = text.to_owned();
        if text.len() > 10 {
            text.replace_range(10..11, "T");
        }
        text
    })
}

/// The day of a moment's text, and its month.
pub(super) fn day_and_month(text: &str) -> (&str, &str) {
    (&text[..10], &text[..7])
}

/// Time until the next day, or the next month, begins.
pub(super) fn until_next(at: SystemTime, month: bool) -> Duration {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let today = (since.as_secs() / DAY_S) as i64;
    let next = match (month, civil(today)) {
        (false, _) => today + 1,
        (true, (year, 12, _)) => days_from_civil(year + 1, 1, 1),
        (true, (year, month, _)) => days_from_civil(year, month + 1, 1),
    };
    Duration::from_secs(next as u64 * DAY_S).saturating_sub(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-12-31T23:59:30.25Z.
    fn late() -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_798_761_570_250)
    }

    #[test]
    fn moments_are_written_and_compared_as_text() {
        assert_eq!(text(late()), "2026-12-31T23:59:30.250Z");
        assert_eq!(day_and_month(&text(late())), ("2026-12-31", "2026-12"));
        for earlier in ["2026", "2026-12", "2026-12-31", "2026-12-31T23", "2026-12-31T23:59:30"] {
            assert!(earlier < &*text(late()), "{earlier}");
        }
        for later in ["2027-01", "2026-12-31T23:59:31"] {
            assert!(later > &*text(late()), "{later}");
        }
        assert_eq!(until_next(late(), false), Duration::from_millis(29_750));
        assert_eq!(until_next(late(), true), Duration::from_millis(29_750));
        assert_eq!(until_next(late() - Duration::from_secs(DAY_S), true).as_secs(), DAY_S + 29);
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for (written, read_as) in [
            ("2026-12", "2026-12"),
            ("2028-02-29", "2028-02-29"),
            ("2026-12-01 08:30Z", "2026-12-01T08:30"),
            ("2026-12-01t08:30:05z", "2026-12-01T08:30:05"),
        ] {
            assert_eq!(read(written).as_deref(), Some(read_as));
        }
        for written in [
            "",
            "2026",
            "2026-13",
            "2026-00",
            "2027-02-29",
            "2026-12-01T24",
            "2026-12-01T08:60",
            "1764556000",
            "2026-12-01T08:30:05+01:00",
            "2026-1-1",
            "2026-12-ab",
            "２０２６-12",
        ] {
            assert_eq!(read(written), None, "{written}");
        }
    }
}
