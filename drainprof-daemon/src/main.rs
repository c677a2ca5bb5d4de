//! The `drainprof` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    drainprof::cli::main()
}
