//! x
use anyhow::Result;
#[derive(clap::Args, Default)] pub(crate) struct Args {}

pub(crate) fn run(_:&Args)->Result<()>{Ok(())}
