//! Values as people write them: times (`5m`, `30d`), shares (`80%`), sizes (`16KiB`).
//!
//! The command line, configuration files and HTTP use these types, so all three accept the same text. Each value prints
//! as text that reads back as the same value.

use std::{fmt, ops::Div, str::FromStr, time::Duration};

use bytesize::ByteSize;
use jiff::{
    SignedDuration, SpanRelativeTo, SpanRound, Timestamp, Unit, Zoned, civil,
    fmt::friendly::{Designator, Spacing, SpanParser, SpanPrinter},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time: `500ms`, `30s`, `1h 30m`, `30d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(Duration);

impl Time {
    /// Of so many seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Of so many minutes.
    #[must_use]
    pub const fn minutes(minutes: u64) -> Self {
        Self::seconds(minutes * 60)
    }

    /// Of so many hours.
    #[must_use]
    pub const fn hours(hours: u64) -> Self {
        Self::seconds(hours * 3600)
    }

    /// Of so many days of 24 hours.
    #[must_use]
    pub const fn days(days: u64) -> Self {
        Self::hours(days * 24)
    }

    /// Of `seconds`; zero if they are negative or non-finite.
    #[must_use]
    pub fn of_seconds(seconds: f64) -> Self {
        Self(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }

    /// In seconds.
    #[must_use]
    pub const fn as_seconds(self) -> f64 {
        self.0.as_secs_f64()
    }

    /// As a duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self(time)
    }
}

impl Div for Time {
    type Output = f64;

    fn div(self, other: Self) -> f64 {
        self.as_seconds() / other.as_seconds()
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Months and years differ in length: the conversion refuses them.
        let days = SpanRelativeTo::days_are_24_hours();
        let span = SpanParser::new().parse_span(text).and_then(|span| span.to_duration(days));
        span.ok()
            .and_then(|time| Duration::try_from(time).ok())
            .map(Self)
            .ok_or_else(|| "expected a time with its unit: 500ms, 30s, 5m, 1h 30m, 30d".to_owned())
    }
}

impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printer = SpanPrinter::new().designator(Designator::Compact);
        let printer = printer.spacing(Spacing::BetweenUnits);
        let days = SpanRound::new().largest(Unit::Day).days_are_24_hours();
        let span = SignedDuration::try_from(self.0)
            .and_then(jiff::Span::try_from)
            .and_then(|span| span.round(days));
        match span {
            Ok(span) => out.write_str(&printer.span_to_string(&span)),
            Err(_) => out.write_str(&printer.unsigned_duration_to_string(&self.0)),
        }
    }
}

/// A point in time as people write it, in milliseconds since 1970: `10:30`, the last one before `now`;
/// `2026-01-31 12:00`, in the time zone of `now`; `2026-01-31T12:00Z`; or the number itself.
pub fn unix_ms(text: &str, now: &Zoned) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is no time: 10:30, 2026-01-31T12:00, or milliseconds since 1970");
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let daily = || {
        let time: civil::Time = text.parse().ok()?;
        let today = now.with().time(time).build().ok()?;
        if today <= *now { Some(today) } else { today.yesterday().ok() }
    };
    let dated = || text.parse::<civil::DateTime>().ok()?.to_zoned(now.time_zone().clone()).ok();
    let stamp = text.parse::<Timestamp>().ok();
    let time = stamp.or_else(|| dated().or_else(daily).map(|time| time.timestamp()));
    time.and_then(|time| u64::try_from(time.as_millisecond()).ok()).ok_or_else(wrong)
}

/// A share of something; from 0 to 1 where nothing else is said. Written `80%` or 0.8.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, divisor) = match text.strip_suffix('%') {
            Some(number) => (number.trim_end(), 100.0),
            None => (text, 1.0),
        };
        match number.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Self(value / divisor)),
            _ => Err("expected a share: 80%, or 0.8".to_owned()),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}%", (self.0 * 1e11).round() / 1e9);
        // A share with more digits than a percentage of use is written as the number that it is.
        match text.parse::<Self>() {
            Ok(read) if read == *self => out.write_str(&text),
            _ => write!(out, "{}", self.0),
        }
    }
}

/// A number of bytes: `512KiB`, or a plain number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        ByteSize::from_str(text)
            .map(|size| Self(size.as_u64()))
            .map_err(|_| "expected a size: 65536, 64KiB, 16MiB".to_owned())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, size)| self.0 >= *size && self.0.is_multiple_of(*size));
        match unit {
            Some((name, size)) => write!(out, "{}{name}", self.0 / size),
            None => write!(out, "{}", self.0),
        }
    }
}

macro_rules! as_text {
    ($type:ty, $format:literal, $expected:literal) => {
        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": ["string", "number"], "format": $format })
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                        out.write_str($expected)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(|expected| {
                            E::custom(format!("`{}`: {expected}", text.escape_debug()))
                        })
                    }
                    fn visit_f64<E: de::Error>(self, number: f64) -> Result<$type, E> {
                        <$type>::of_number(number)
                            .ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        <$type>::of_whole(number)
                            .ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
                    }
                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$type, E> {
                        i64::try_from(number).ok().and_then(<$type>::of_whole).ok_or_else(|| {
                            E::invalid_value(de::Unexpected::Unsigned(number), &self)
                        })
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    };
}

as_text!(Time, "time", "a time with its unit: \"30s\", \"5m\", \"1h 30m\", \"30d\"");
as_text!(Share, "share", "a share: \"80%\", or 0.8");
as_text!(Bytes, "size", "a size: 65536, \"64KiB\", \"16MiB\"");

// What a bare number means in each.
impl Time {
    const fn of_number(_: f64) -> Option<Self> {
        None
    }
    const fn of_whole(number: i64) -> Option<Self> {
        if number == 0 { Some(Self::seconds(0)) } else { None }
    }
}

impl Share {
    fn of_number(number: f64) -> Option<Self> {
        number.is_finite().then_some(Self(number))
    }
    fn of_whole(number: i64) -> Option<Self> {
        Self::of_number(number as f64)
    }
}

impl Bytes {
    const fn of_number(_: f64) -> Option<Self> {
        None
    }
    fn of_whole(number: i64) -> Option<Self> {
        u64::try_from(number).ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct All {
        time: Time,
        share: Share,
        bytes: Bytes,
    }

    /// Times of day are the last ones; dates have the zone of now, or their own.
    #[test]
    fn points_in_time() {
        let now: Zoned = "2026-03-01T09:00:00+01:00[Europe/Berlin]".parse().unwrap();
        let ms = |text: &str| text.parse::<Timestamp>().unwrap().as_millisecond().cast_unsigned();
        for (text, is) in [
            ("08:59", "2026-03-01T07:59:00Z"),
            ("09:00:00", "2026-03-01T08:00:00Z"),
            ("10:30", "2026-02-28T09:30:00Z"),
            ("2026-02-01 12:00", "2026-02-01T11:00:00Z"),
            ("2026-02-01T12:00Z", "2026-02-01T12:00:00Z"),
        ] {
            assert_eq!(unix_ms(text, &now), Ok(ms(is)), "{text}");
        }
        assert_eq!(unix_ms("1700000000000", &now), Ok(1_700_000_000_000));
        for text in ["", "25:00", "yesterday", "-5", "1969-01-01", "2026-13-01T00:00"] {
            assert!(unix_ms(text, &now).unwrap_err().contains("is no time"), "{text}");
        }
    }

    /// All ways to write a value are read; what is written is read again as the same.
    #[test]
    fn read_and_written() {
        let cases = [
            ("time = '5m'\nshare = '1%'\nbytes = '16KiB'", (300.0, 0.01, 16_384)),
            ("time = '1h 30m'\nshare = 0.8\nbytes = 70000", (5400.0, 0.8, 70_000)),
            ("time = 0\nshare = 1\nbytes = '1 GiB'", (0.0, 1.0, 1 << 30)),
            ("time = '500ms'\nshare = '12.5 %'\nbytes = 0", (0.5, 0.125, 0)),
        ];
        for (text, (time, share, bytes)) in cases {
            let all: All = toml::from_str(text).unwrap();
            assert_eq!(all.time.as_seconds().to_bits(), f64::to_bits(time), "{text}");
            assert_eq!(all.share.0.to_bits(), f64::to_bits(share), "{text}");
            assert_eq!(all.bytes.0, bytes, "{text}");
            let again: All = toml::from_str(&toml::to_string(&all).unwrap()).unwrap();
            assert_eq!(again, all);
        }
        assert_eq!(Time::minutes(90).to_string(), "1h 30m");
        assert_eq!(Time::days(30).to_string(), "30d");
        assert_eq!("30d".parse(), Ok(Time::days(30)));
        assert_eq!("1.5s".parse(), Ok(Time::from(Duration::from_millis(1500))));
        assert_eq!("250ms".parse(), Ok(Time::from(Duration::from_millis(250))));
        assert_eq!(Share(0.07).to_string(), "7%");
        assert_eq!(Bytes(3 << 20).to_string(), "3MiB");
    }

    /// What is no such value is refused, with what is expected.
    #[test]
    fn refused() {
        let good = "time = '5m'\nshare = '1%'\nbytes = '16KiB'";
        let cases = [
            ("'5m'", "5", "a time with its unit"),
            ("'5m'", "'5'", "a time with its unit"),
            ("'5m'", "'-5m'", "a time with its unit"),
            ("'5m'", "'5m\\u001b'", "a time with its unit"),
            ("'5m'", "'1month'", "a time with its unit"),
            ("'5m'", "'1e400s'", "a time with its unit"),
            ("'1%'", "'nan%'", "a share"),
            ("'1%'", "inf", "a share"),
            ("'1%'", "'1e999'", "a share"),
            ("'16KiB'", "'-1'", "a size"),
            ("'16KiB'", "-1", "a size"),
            ("'16KiB'", "1.5", "a size"),
            ("'16KiB'", "'much'", "a size"),
        ];
        for (old, new, expected) in cases {
            let error = toml::from_str::<All>(&good.replace(old, new)).unwrap_err().to_string();
            assert!(error.contains(expected), "{new}: {error}");
        }
    }
}
