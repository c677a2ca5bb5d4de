//! Each rule over synthetic series: fires when it must, not on noise, nor on the nearest case that must not.

mod closes;
mod engine;
mod heaps;
mod memory;
mod objects;
mod observed;
