//! Writes every seed into the corpus of its target: `seeds FOLDER`, which is `fuzz/corpus`. A
//! seed's file is named for its number.

use std::path::PathBuf;
use std::{env, fs, io, process};

fn main() -> io::Result<()> {
    let Some(folder) = env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("seeds: say where to write them, for example: seeds fuzz/corpus");
        process::exit(2);
    };
    for (number, (target, seed)) in bodies::seeds().into_iter().enumerate() {
        let folder = folder.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("seed-{number:04}")), seed.0)?;
    }
    Ok(())
}
