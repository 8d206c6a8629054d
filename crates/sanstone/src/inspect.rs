//! `sanstone volume inspect`: says what a disk is, whoever uses it: which volume it belongs to, who owns that, what is on it.

use std::{
    fmt::Write as _,
    fs::File,
    io::{Seek, SeekFrom},
    os::unix::fs::{FileExt, FileTypeExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use engine::{Lane, LaneConfig, store};
use serde::Serialize;
use volume::inspect::{self, DiskEnds, END_BYTES, Inspection};

use crate::{
    discover::Account,
    failure::VerbFailure,
    output::{self, OutputFile},
    quantity::bytes,
};

#[derive(Args)]
pub(crate) struct InspectCall {
    /// The path of a file or block device, or the URL of a remote disk: iscsi://HOST[:PORT]/TARGET/LUN.
    disk: String,
    #[command(flatten)]
    account: Account,
    /// Write JSON to FILE instead; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What programs are told.
#[derive(Serialize)]
struct InspectOutput<'a> {
    product_version: &'static str,
    disk: &'a str,
    /// The identity with which a daemon has marked a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    mark: Option<String>,
    /// Of a remote disk: the length of its blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size_bytes: Option<u32>,
    #[serde(flatten)]
    found: Inspection,
}

/// Says what the disk that `call` names is.
pub(crate) fn run(call: &InspectCall) -> Result<(), VerbFailure> {
    let json = call.json.as_deref().map(OutputFile::open_or_standard);
    let json = json.transpose()?;
    let (ends, block_size_bytes) = match call.disk.starts_with("iscsi://") {
        true => {
            let settings = call.account.settings()?;
            let lane = Lane::new(&LaneConfig::default())?;
            let home = lane.handle();
            let read = lane.block_on(inspect::remote_ends(&call.disk, &settings, &home));
            let (ends, block_size_bytes) = read.with_context(|| call.disk.clone())?;
            (ends, Some(block_size_bytes))
        }
        false => (local_ends(Path::new(&call.disk))?, None),
    };
    let mark = match block_size_bytes {
        Some(_) => None,
        None => store::mark(Path::new(&call.disk)).ok().flatten(),
    };
    let told = InspectOutput {
        product_version: env!("CARGO_PKG_VERSION"),
        disk: &call.disk,
        mark: mark.map(|mark| String::from_utf8_lossy(&mark).into_owned()),
        block_size_bytes,
        found: inspect::inspect(&ends),
    };
    match json {
        Some(mut file) => Ok(file.append(&format!("{}\n", serde_json::to_string_pretty(&told)?))?),
        None => Ok(output::print(said(&told))?),
    }
}

/// The ends of a file or block device, read whoever has it locked.
fn local_ends(path: &Path) -> anyhow::Result<DiskEnds> {
    let shown = || path.display().to_string();
    // Looked at before it is opened: a pipe that is opened waits for its other end.
    let kind = path.metadata().with_context(shown)?.file_type();
    anyhow::ensure!(
        kind.is_file() || kind.is_block_device(),
        "{} is neither a file nor a block device: name a disk",
        shown()
    );
    let mut file = File::open(path).with_context(shown)?;
    let len_bytes = file.seek(SeekFrom::End(0)).with_context(shown)?;
    let len = len_bytes.min(END_BYTES);
    let read = |at: u64| -> anyhow::Result<Vec<u8>> {
        let mut block = vec![0; len as usize];
        file.read_exact_at(&mut block, at).with_context(shown)?;
        Ok(block)
    };
    Ok(DiskEnds {
        len_bytes,
        start: read(0)?,
        end: read(len_bytes - len)?,
    })
}

/// For people.
fn said(told: &InspectOutput<'_>) -> String {
    let found = &told.found;
    let mut text = format!("{}: {}\n", told.disk, bytes(found.len_bytes));
    let mut line = |line: String| {
        let _ = writeln!(text, "  {line}");
    };
    if let Some(mark) = &told.mark {
        line(format!(
            "marked as disk {mark} by a daemon that has served it"
        ));
    }
    if let Some(set) = &found.set {
        let unit = set
            .unit_bytes
            .map(|unit| format!(", units of {}", bytes(unit.into())));
        line(format!(
            "child {} of {} of the {} {}{}, {} of data",
            set.child,
            set.children,
            set.kind,
            set.volume,
            unit.unwrap_or_default(),
            bytes(set.data_bytes)
        ));
    }
    if let Some(owner) = &found.owner {
        line(match &owner.owner {
            Some(id) => format!(
                "claimed by {} (owner {id}), generation {}",
                owner.name, owner.generation
            ),
            None => format!("claimed by nobody, generation {}", owner.generation),
        });
    }
    if let Some(copy) = &found.mirror {
        line(format!(
            "copy {} of the mirror {}, {} of data",
            copy.copy,
            copy.mirror,
            bytes(copy.data_bytes)
        ));
    }
    for one in &found.registered {
        let owner = match &one.owner {
            Some(node) => format!("owned by node {node}"),
            None => "owned by nobody".to_owned(),
        };
        line(format!(
            "the register of the mirror {}, epoch {}, {owner}",
            one.mirror, one.epoch
        ));
    }
    for why in &found.unreadable {
        line(format!("a label of Sanstone's that cannot be read: {why}"));
    }
    let is_labelled = found.set.is_some() || found.mirror.is_some() || !found.registered.is_empty();
    match found.content {
        Some(content) => line(format!("holds {content}")),
        None if found.is_blank => line("its first MiB is blank".to_owned()),
        None if !is_labelled => line("holds nothing that is known here".to_owned()),
        None => {}
    }
    text
}
