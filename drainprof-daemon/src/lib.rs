//! The `drainprof` command: arguments in, text out, and the terminal UI.

pub mod cli;
pub mod ui;
