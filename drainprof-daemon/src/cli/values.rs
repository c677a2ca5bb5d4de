//! Values of options: choices, and text that is read.

use std::time::Duration;

use clap::ValueEnum;
use drainprof_probe::plan::Sites;
use drainprof_profile::Level;
use drainprof_report::{
    Report,
    export::{FORMATS, Format, PinWeight},
    facts::Duty,
    values::{Share, Time},
};

use super::exit::{Failure, code};

/// Formats of commands that write a table of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PlainFormat {
    /// A table for people.
    Text,
    /// One JSON document.
    Json,
}

/// Formats of commands that answer for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum AnswerFormat {
    /// A page for people.
    Text,
    /// One page for a browser, in one file.
    Html,
    /// One JSON document.
    Json,
}

/// Declares the choices of an option, each of which stands for the value of the same name.
macro_rules! choices {
    ($(#[$meta:meta])* $name:ident for $target:ty { $($(#[$doc:meta])* $choice:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
        pub(super) enum $name {
            $($(#[$doc])* $choice,)*
        }

        impl From<$name> for $target {
            fn from(choice: $name) -> Self {
                match choice {
                    $($name::$choice => Self::$choice,)*
                }
            }
        }
    };
}

choices! {
    /// A level on the command line.
    LevelArg for Level {
        /// Closes only; reads live counts from memory.
        Close,
        /// Opens and closes only; reads live counts from memory.
        Boundary,
        /// Every alloc and free as well.
        Objects,
        /// Also the call stack of every alloc.
        Stacks,
    }
}

choices! {
    /// What the widths of a flame graph mean.
    WeightArg for PinWeight {
        /// Granules pinned.
        Granules,
        /// Bytes of pins.
        Bytes,
        /// Bytes of retained granules.
        Retained,
        /// With --growth: resident memory added.
        Faults,
        /// With --growth: heap added.
        Heap,
        /// With --growth: memory still mapped.
        Mappings,
    }
}

impl WeightArg {
    /// Whether it is reported only with `--growth`.
    pub(super) const fn is_of_growth(self) -> bool {
        matches!(self, Self::Faults | Self::Heap | Self::Mappings)
    }
}

/// Formats whose widths mean a weight.
const WITH_WIDTHS: [&str; 2] = ["folded", "flamegraph"];

/// Refuses widths that a report does not have, where it has others: they would be none.
pub(super) fn require_weight(
    format: &Format,
    weight: WeightArg,
    report: &Report,
) -> Result<(), Failure> {
    if !WITH_WIDTHS.contains(&format.name) || PinWeight::from(weight).is_in(report) {
        return Ok(());
    }
    let name = |weight: &WeightArg| {
        weight.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    };
    let all = WeightArg::value_variants().iter();
    let known: Vec<String> =
        all.filter(|weight| PinWeight::from(**weight).is_in(report)).map(name).collect();
    if known.is_empty() {
        return Ok(());
    }
    let text = format!(
        "the report has nothing of --weight {}; it has {}",
        name(&weight),
        known.join(", ")
    );
    Err(Failure::new(code::USAGE, text))
}

choices! {
    /// Which instructions of functions may be probed.
    SitesArg for Sites {
        /// The first one.
        Entry,
        /// The cheapest equivalent.
        Cheapest,
    }
}

pub(super) fn format_names() -> clap::builder::PossibleValuesParser {
    FORMATS
        .iter()
        .map(|format| clap::builder::PossibleValue::new(format.name).help(format.what))
        .collect::<Vec<_>>()
        .into()
}

/// What probes may cost: a share of one CPU, or `none` for anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Budget(pub(super) Option<f64>);

/// `0.05`, `5%`, or `none`.
pub(super) fn budget(text: &str) -> Result<Budget, String> {
    if text == "none" {
        return Ok(Budget(None));
    }
    match text.parse() {
        Ok(Share(share)) if share > 0.0 => Ok(Budget(Some(share))),
        _ => Err("expected a share of one CPU above 0 (0.05 or 5%), or none".to_owned()),
    }
}

/// A part of a whole: `0.95`, `95%`.
pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let Share(ratio) = text.parse()?;
    (0.0..=1.0)
        .contains(&ratio)
        .then_some(ratio)
        .ok_or_else(|| "expected a share from 0 to 1: 0.95 or 95%".to_owned())
}

/// A time with its unit, or a number of seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => text.parse().map(Time::get),
    }
}

/// A point in time, in milliseconds since 1970.
pub(super) fn point_in_time(text: &str) -> Result<u64, String> {
    drainprof_report::values::unix_ms(text, &jiff::Zoned::now())
}

/// A sample: N, or 1/N, for one of N.
pub(super) fn sample(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("1/").unwrap_or(text);
    match number.parse() {
        Ok(one_in @ 1..=65_536) if number.bytes().all(|byte| byte.is_ascii_digit()) => Ok(one_in),
        _ => Err("expected 1/N or N, with N from 1 to 65536".to_owned()),
    }
}

/// A duty cycle: two times, the first shorter than the second.
pub(super) fn duty(text: &str) -> Result<Duty, String> {
    let (on, period) =
        text.split_once('/').ok_or_else(|| "expected two times, on/period: 10s/10m".to_owned())?;
    let (on, period) = (duration(on)?, duration(period)?);
    if on.is_zero() {
        return Err("nothing is seen in windows of no length".to_owned());
    }
    if on >= period {
        return Err("the window must be shorter than the period; without --duty it is observed \
                    all the time"
            .to_owned());
    }
    Ok(Duty { on, period })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times take units, and nothing that is no time.
    #[test]
    fn times() {
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for bad in ["", "s", "-1", "1 month", "1e400", "nan", "inf"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    /// A duty cycle is a shorter time in a longer one.
    #[test]
    fn duties() {
        let seconds =
            |on, period| Duty { on: Duration::from_secs(on), period: Duration::from_secs(period) };
        assert_eq!(duty("10s/10m"), Ok(seconds(10, 600)));
        assert_eq!(duty("1/2"), Ok(seconds(1, 2)));
        for bad in [
            "", "/", "10s", "10s/", "/10m", "0/10m", "0s/0s", "10m/10s", "1m/60s", "-1s/10s",
            "1s/2s/3s", "a/b", "1s/1e400",
        ] {
            assert!(duty(bad).is_err(), "{bad}");
        }
    }

    /// A sample is one of some number.
    #[test]
    fn samples() {
        assert_eq!(sample("1/16"), Ok(16));
        assert_eq!(sample("16"), Ok(16));
        assert_eq!(sample("1"), Ok(1));
        assert_eq!(sample("1/3"), Ok(3));
        assert_eq!(sample("65536"), Ok(65_536));
        for bad in ["", "0", "1/0", "1/", "2/16", "1/65537", "-4", "1/1/4", "+4", "0.5", "all"] {
            assert!(sample(bad).is_err(), "{bad}");
        }
    }

    /// A threshold is a ratio.
    #[test]
    fn thresholds() {
        assert_eq!(ratio("0.95"), Ok(0.95));
        assert_eq!(ratio("2%"), Ok(0.02));
        assert_eq!(ratio("100%"), Ok(1.0));
        for bad in ["", "%", "1.5", "-0.1", "-1%", "101%", "2", "nan", "x"] {
            assert!(ratio(bad).is_err(), "{bad}");
        }
    }
}
