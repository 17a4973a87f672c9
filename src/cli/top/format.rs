//! Numbers as text: three digits at most, and the unit.

/// What stands for a figure that there is none of.
pub(super) const NONE: &str = "–";

/// A count or a rate: 0, 0.25, 3.4, 128, 1.2k, 3.4M.
pub(super) fn count<T: Into<Option<f64>>>(value: T) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    value.into().map_or(NONE.into(), |value| scaled(value, 1000.0, &UNITS))
}

/// Bytes: 108 MiB, 1.2 GiB.
pub(super) fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = [" B", " KiB", " MiB", " GiB", " TiB"];
    scaled(value, 1024.0, &UNITS)
}

fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    if !value.is_finite() {
        return NONE.into();
    }
    let (mut value, mut unit) = (value, 0);
    // What would be rounded to the next unit is in it already.
    while value.abs() >= base - 0.5 && unit + 1 < units.len() {
        (value, unit) = (value / base, unit + 1);
    }
    format!("{}{}", digits(value, unit == 0), units[unit])
}

/// A value below 1000 with the digits that can be read at a glance.
fn digits(value: f64, fine: bool) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 0.995 && fine => format!("{value:.2}"),
        size if size < 9.95 && value.fract() != 0.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A latency: 820 µs, 3.4 ms, 128 ms, 1.2 s, 45 s, 3 min.
pub(super) fn latency<T: Into<Option<f64>>>(seconds: T) -> String {
    let Some(seconds) = seconds.into().filter(|seconds| seconds.is_finite()) else { return NONE.into() };
    match seconds {
        0.0 => "0 ms".into(),
        s if s < 0.000_999_5 => format!("{:.0} µs", s * 1e6),
        s if s < 0.009_95 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 119.5 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

/// A time that passes, to the second: 7 s, 3 min 20 s, 2 h 5 min, 3 d 4 h.
pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => match seconds % 60 {
            0 => format!("{minutes} min"),
            rest => format!("{minutes} min {rest} s"),
        },
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// A share, 0 to 1: 0 %, <0.1 %, 0.3 %, 43 %.
pub(super) fn percent<T: Into<Option<f64>>>(share: T) -> String {
    match share.into().map(|share| share * 100.0).filter(|percent| percent.is_finite()) {
        None => NONE.into(),
        Some(percent) if percent > 0.0 && percent < 0.05 => "<0.1 %".into(),
        Some(percent) if percent > 0.0 && percent < 0.95 => format!("{percent:.1} %"),
        Some(percent) => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Copy + std::fmt::Debug>(format: fn(T) -> String, texts: &[(T, &str)]) {
        texts.iter().for_each(|(value, text)| assert_eq!(format(*value), *text, "{value:?}"));
    }

    #[test]
    fn counts() {
        check(count, &[(0.0, "0"), (0.254, "0.25"), (1.0, "1"), (3.44, "3.4"), (9.97, "10"), (999.4, "999")]);
        check(count, &[(999.6, "1.0k"), (1234.0, "1.2k"), (65_536.0, "66k"), (1_000_000.0, "1M")]);
        check(count, &[(Some(1e18), "1000000T"), (Some(f64::NAN), NONE), (None, NONE)]);
        check(bytes, &[(114_044_928.0, "109 MiB"), (1_610_612_736.0, "1.5 GiB")]);
    }

    #[test]
    fn times() {
        check(latency, &[(0.0, "0 ms"), (0.000_82, "820 µs"), (0.003_44, "3.4 ms"), (0.128, "128 ms")]);
        check(
            latency,
            &[(Some(0.9999), "1.0 s"), (Some(45.0), "45 s"), (Some(180.0), "3 min"), (None, NONE)],
        );
        check(duration, &[(7.9, "7 s"), (120.0, "2 min"), (200.0, "3 min 20 s"), (-1.0, "0 s")]);
        check(duration, &[(7500.0, "2 h 5 min"), (273_600.0, "3 d 4 h")]);
    }

    #[test]
    fn shares() {
        check(percent, &[(0.0, "0 %"), (1e-9, "<0.1 %"), (0.003, "0.3 %"), (0.43, "43 %"), (1.0, "100 %")]);
        check(percent, &[(None, NONE)]);
    }
}
