//! Harness of the privileged end-to-end tests.
//!
//! A test starts a target (`target`), puts drainprof on it (`tracer`), lets it run, and compares the
//! truth that the target prints with the report to the last event (`compare`). `elf` reads what a
//! target's file says; `truth` is the other side, used by the Rust targets. Nothing here sleeps: every
//! wait is for a line, the end of a stream or the end of a process, with a deadline.

pub mod attack;
pub mod bind;
pub mod browser;
pub mod compare;
pub mod elf;
pub mod environment;
pub mod fuse;
pub mod gaps;
pub mod groups;
pub mod haproxy;
pub mod helper;
pub mod hostile;
pub mod http;
pub mod kernel_maps;
pub mod mariadb;
pub mod nginx;
pub mod node;
pub mod paths;
pub mod php;
pub mod postgresql;
pub mod preload;
pub mod process;
pub mod redis;
pub mod runtimes;
pub mod screen;
pub mod session;
pub mod shipped;
pub mod silent;
pub mod subversion;
pub mod talloc;
pub mod target;
pub mod tracer;
pub mod truth;
pub mod uprobe;
pub mod varnish;
pub mod watch;
