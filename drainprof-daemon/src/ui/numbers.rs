//! Numbers in few columns. Long forms are those of `report::units`.

/// What is shown for what is not known.
pub(super) const UNKNOWN: &str = "–";

/// The text of a value, or [`UNKNOWN`].
pub(super) fn or_unknown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), show)
}

/// Bytes in at most five columns: `9.7M`, `1.0G`; a sixth for a minus.
pub(super) fn bytes(count: f64) -> String {
    scaled(count, 1024.0, &["B", "K", "M", "G", "T", "P", "E"], "B")
}

/// A growth of bytes, with its sign.
pub(super) fn growth(count: f64) -> String {
    let text = bytes(count);
    if count > 0.0 && text != "0B" { format!("+{text}") } else { text }
}

/// Something per second in at most five columns: `0.25`, `1234`, `12.3k`.
pub(super) fn rate(count: f64) -> String {
    match count.abs() {
        c if !c.is_finite() => UNKNOWN.to_owned(),
        c if c < 0.005 && c > 0.0 => "<.01".to_owned(),
        0.0 => "0".to_owned(),
        c if c < 9.995 => format!("{count:.2}"),
        c if c < 99.95 => format!("{count:.1}"),
        c if c < 9_999.5 => format!("{count:.0}"),
        _ => scaled(count, 1000.0, &["", "k", "M", "G", "T", "P", "E"], ""),
    }
}

/// A number of things in at most five columns: `1234`, `12k`.
pub(super) fn count(count: u64) -> String {
    if count < 10_000 { count.to_string() } else { rate(count as f64) }
}

/// A share in at most five columns: `0.3%`, `12%`.
pub(super) fn share(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        p if !p.is_finite() => UNKNOWN.to_owned(),
        0.0 => "0%".to_owned(),
        p if p < 0.05 => "<.1%".to_owned(),
        p if p < 9.95 => format!("{percent:.1}%"),
        p if p < 9_999.5 => format!("{percent:.0}%"),
        _ => ">9k%".to_owned(),
    }
}

/// A DSR in six columns.
pub(super) fn dsr(value: f64) -> String {
    drainprof_report::units::dsr(Some(value))
}

/// `count` with the unit that leaves fewer than 1000 of it; whole in the smallest unit.
fn scaled(count: f64, step: f64, units: &[&str], smallest: &str) -> String {
    if !count.is_finite() {
        return UNKNOWN.to_owned();
    }
    let mut value = count;
    for (index, unit) in units.iter().enumerate() {
        let last = index + 1 == units.len();
        if value.abs() < 999.5 || last {
            // No minus before a zero.
            let value = if value.round() == 0.0 && index == 0 { 0.0 } else { value };
            return match (index, value.abs()) {
                (0, _) => format!("{value:.0}{smallest}"),
                (_, v) if v < 9.95 => format!("{value:.1}{unit}"),
                _ => format!("{value:.0}{unit}"),
            };
        }
        value /= step;
    }
    UNKNOWN.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each number takes the unit that suits it, keeps its sign, and never shows 1000 of a unit.
    #[test]
    fn few_columns() {
        let cases: [(f64, &str); 8] = [
            (0.0, "0B"),
            (999.0, "999B"),
            (1023.0, "1.0K"),
            (10_133_504.0, "9.7M"),
            (1_048_000_000.0, "999M"),
            (1_073_000_000.0, "1.0G"),
            (-2048.0, "-2.0K"),
            (f64::NAN, "–"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text, "{count}");
        }
        assert_eq!(
            (growth(2048.0), growth(-2048.0), growth(0.0)),
            ("+2.0K".into(), "-2.0K".into(), "0B".into())
        );
        assert_eq!(growth(0.2), "0B");
        let rates: [(f64, &str); 8] = [
            (0.0, "0"),
            (0.001, "<.01"),
            (0.25, "0.25"),
            (9.999, "10.0"),
            (1234.4, "1234"),
            (12_345.0, "12k"),
            (1_250_000.0, "1.2M"),
            (f64::INFINITY, "–"),
        ];
        for (count, text) in rates {
            assert_eq!(rate(count), text, "{count}");
        }
        let shares: [(f64, &str); 6] = [
            (0.0, "0%"),
            (0.000_1, "<.1%"),
            (0.012_34, "1.2%"),
            (0.5, "50%"),
            (4.0, "400%"),
            (1e6, ">9k%"),
        ];
        for (count, text) in shares {
            assert_eq!(share(count), text, "{count}");
        }
    }
}
