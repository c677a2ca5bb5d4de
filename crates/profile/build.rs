//! Writes the table of built-in profiles: each file of `profiles/` with its text. The directory is reached through a link
//! inside of the crate, which `cargo package` follows.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
    println!("cargo::rerun-if-changed={}", directory.display());
    let mut rows = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        rows.push(format!("({name:?}, include_str!({:?})),\n", path.to_string_lossy()));
    }
    rows.sort();
    let table = format!("&[{}]", rows.concat());
    fs::write(Path::new(&env::var("OUT_DIR")?).join("built_in.rs"), table)?;
    Ok(())
}
