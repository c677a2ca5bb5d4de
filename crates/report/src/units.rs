//! Numbers for people: bytes, times, rates and shares. Used by findings and by the text formats.

use bytesize::ByteSize;
use jiff::{Timestamp, tz::TimeZone};

/// Bytes in IEC units: `9.7 MiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    ByteSize::b(count).display().iec().to_string()
}

/// So many of something: `1 process`, `3 processes`.
#[must_use]
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A length of time in the unit that suits it: `950 ns`, `12.3 µs`, `2 min 05 s`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    if seconds.is_nan() || seconds < 0.0 {
        return "?".to_owned();
    }
    if seconds < 59.95 {
        let (factor, unit) = match seconds {
            s if s == 0.0 || s >= 0.9995 => (1.0, "s"),
            s if s >= 0.999_5e-3 => (1e3, "ms"),
            s if s >= 0.999_5e-6 => (1e6, "µs"),
            _ => (1e9, "ns"),
        };
        return format!("{} {unit}", three_digits(seconds * factor));
    }
    #[allow(clippy::cast_sign_loss, reason = "checked above; the cast saturates")]
    let whole = seconds.round() as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3_600, whole / 86_400);
    if days > 0 {
        format!("{days} d {:02} h", hours % 24)
    } else if hours > 0 {
        format!("{hours} h {:02} min", minutes % 60)
    } else {
        format!("{minutes} min {:02} s", whole % 60)
    }
}

/// Events per second: `248/s`.
#[must_use]
pub fn rate(per_second: f64) -> String {
    format!("{}/s", three_digits(per_second))
}

/// Bytes per second: `990.0 KiB/s`.
#[must_use]
pub fn byte_rate(per_second: f64) -> String {
    let magnitude = per_second.abs();
    #[allow(clippy::cast_sign_loss, reason = "not negative; the cast saturates")]
    let whole = magnitude.round() as u64;
    let sign = if per_second < 0.0 && whole > 0 { "-" } else { "" };
    format!("{sign}{}/s", bytes(whole))
}

/// A share of one as per cent: `24.7 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{} %", three_digits(share * 100.0))
}

/// A point in time, in milliseconds since 1970, as people here read it: `2026-01-31 12:00:05`.
#[must_use]
pub fn clock(unix_ms: u64) -> String {
    i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).map_or_else(
        || "?".to_owned(),
        |time| time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

/// A DSR: four digits after the point, and never rounded up to a 1 that it is not.
#[must_use]
pub fn dsr(value: Option<f64>) -> String {
    match value {
        None => "no data".to_owned(),
        Some(value) if value < 1.0 && value > 0.999_9 => "0.9999".to_owned(),
        Some(value) if value > 0.0 && value < 0.000_1 => "0.0001".to_owned(),
        Some(value) => format!("{value:.4}"),
    }
}

/// The ends of an interval of bytes: `1.2 MiB–1.4 MiB`.
#[must_use]
pub fn byte_interval([low, high]: [u64; 2]) -> String {
    format!("{}–{}", bytes(low), bytes(high))
}

/// At most three digits that count, none after the point from 100 on.
fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == 0.0 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.995 => format!("{value:.2}"),
        v if v >= 0.000_5 => format!("{value:.3}"),
        _ => format!("{value:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times take the unit that suits them and never show 60 seconds or 1000 milliseconds.
    #[test]
    fn durations() {
        let cases = [
            (0.0, "0 s"),
            (950e-9, "950 ns"),
            (12.34e-6, "12.3 µs"),
            (4.5678e-3, "4.57 ms"),
            (0.99999, "1.00 s"),
            (1.234, "1.23 s"),
            (59.99, "1 min 00 s"),
            (125.0, "2 min 05 s"),
            (11_220.0, "3 h 07 min"),
            (183_600.0, "2 d 03 h"),
            (f64::NAN, "?"),
            (-1.0, "?"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }

    /// Bytes are in binary units; rates keep three digits; negative rates keep their sign.
    #[test]
    fn bytes_and_rates() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(10_133_504), "9.7 MiB");
        assert_eq!(rate(247.6), "248/s");
        assert_eq!(rate(2.476), "2.48/s");
        assert_eq!(rate(0.0), "0/s");
        assert_eq!(byte_rate(-2048.0), "-2.0 KiB/s");
        assert_eq!(percent(0.2474), "24.7 %");
    }

    /// A DSR that is not quite 1 or 0 is never shown as 1 or 0, and none is not a number.
    #[test]
    fn dsr_is_not_rounded_to_perfection() {
        assert_eq!(dsr(None), "no data");
        assert_eq!(dsr(Some(1.0)), "1.0000");
        assert_eq!(dsr(Some(0.999_999)), "0.9999");
        assert_eq!(dsr(Some(0.000_001)), "0.0001");
        assert_eq!(dsr(Some(0.752_6)), "0.7526");
    }
}
