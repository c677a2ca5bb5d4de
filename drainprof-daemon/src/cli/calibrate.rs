//! `drainprof calibrate`.

use anyhow::Result;
use clap::Args;
use drainprof_probe::calibrate;

use super::{args::CacheArgs, code, options, output, values::PlainFormat};

#[derive(Args, Debug)]
pub(super) struct CalibrateArgs {
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = PlainFormat::Text)]
    format: PlainFormat,
    /// Measure again, even if results are kept.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    cache: CacheArgs,
}

/// Shows what probes cost on this host.
pub(super) fn main(args: &CalibrateArgs) -> Result<u8> {
    // Its own mappings are found by its own number.
    options::require_host_pids()?;
    options::require_privileges()?;
    let options = options::calibration(&args.cache, args.fresh);
    let calibration = calibrate::calibrate(&options)?;
    let mut out = output::stdout()?;
    match args.format {
        PlainFormat::Text => calibrate::render_text(&calibration, &mut out)?,
        PlainFormat::Json => calibrate::render_json(&calibration, &mut out)?,
    }
    Ok(code::OK)
}
