//! `drainprof`: shows which granules of arenas, pools and slabs are pinned in unmodified, running programs.
//!
//! The modules stand in running order: data flows from the kernel (`bpf`) through the ledger (`account`)
//! to the report and its formats (`report`, `export`), never back. See ARCHITECTURE.md for the map.

pub mod account;
pub mod bpf;
pub mod calibrate;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod discover;
pub mod export;
pub mod govern;
pub mod growth;
pub mod health;
pub mod kernel;
pub mod launch;
mod lock;
pub mod node;
pub mod plan;
pub mod profile;
pub mod report;
pub mod serve;
pub mod store;
pub mod symbolize;
pub mod target;
pub mod trigger;
pub mod ui;
pub mod unwind;
pub mod watch;
