//! `moafs stat`: shows the counters of a mount, or the attributes of a file on a volume.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use moafs_mount::control::STATS_NAME;
use moafs_mount::control_path::ControlPath;
use moafs_mount::mount_table;
use serde::Serialize;
use serde_json::Value;

use crate::error::{CliError, Result};
use crate::files::file_facts::{FileFacts, Rdev, mode_text};
use crate::files::paths::{Going, Look, look_at_each};
use crate::files::tree::{Details, FileRun, LastLink, Meta, Tree};
use crate::files::{existing, found};
use crate::place::{Inside, Place};
use crate::time::Reported;
use crate::{control, output};

/// Show a mount's counters, or attributes and places of files on their volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs stat /mnt                               requests, cache, failures of the mount
  moafs stat --json /mnt | jq .disk
  moafs stat disk.img:/etc/fstab disk.img:/init attributes, and which blocks they have

Exit code: 0 everything shown, 1 something was not (and said so).")]
pub(crate) struct StatArgs {
    /// A directory of a mount; or IMAGE:PATH, any number of them; or IMAGE, then paths on it
    #[arg(required = true, value_name = "DIR|IMAGE:PATH")]
    words: Vec<OsString>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print the counters or the attributes as JSON, an object for each path
    #[arg(long)]
    json: bool,
}

/// The attributes of a file, as JSON shows them.
#[derive(Debug, Serialize)]
struct File {
    #[serde(flatten)]
    facts: FileFacts,
    atime: Reported,
    mtime: Reported,
    ctime: Reported,
    #[serde(skip_serializing_if = "Option::is_none")]
    birth: Option<Reported>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<u32>,
    xattrs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Vec<FileRun>>,
}

/// Reads `.moafs/stats` of the mount that `path` lies in.
pub(crate) fn of_mount(path: &Path) -> Result<Value> {
    let Some(entry) = mount_table::mount_of(path) else {
        let shown = output::path(path);
        return Err(CliError::Usage(format!("{shown} lies in no mount of moafs (of an image: moafs stat {shown}:/)")));
    };
    control::read(&ControlPath::new(&entry.target, STATS_NAME))
}

impl StatArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match (Place::parse(&self.words[0]), self.words.len()) {
            (Place::Host(path), 1) if !path.is_file() => self.show_mount(&path).map(|()| ExitCode::SUCCESS),
            _ => look_at_each(Inside::parse_all(&self.words), &mut ShowFiles { args: &self }),
        }
    }

    fn show_mount(&self, path: &Path) -> Result<()> {
        let stats = of_mount(path)?;
        if self.json {
            return output::json(&stats);
        }
        let mut text = String::new();
        flatten("", &stats, &mut text);
        text += &requests_table(&stats["disk"]);
        output::print(text.as_bytes())
    }
}

struct ShowFiles<'a> {
    args: &'a StatArgs,
}

impl Look for ShowFiles<'_> {
    fn at<T: Tree>(&mut self, tree: &T, place: &Inside, _going: &mut Going) -> Result<()> {
        let node = if self.args.dereference { found(tree, place, LastLink::Followed) } else { existing(tree, place) }?;
        let (meta, details) = (tree.meta(&node)?, tree.details(&node)?);
        let xattrs = tree.xattrs(&node)?.iter().map(|(name, _)| output::name(name)).collect();
        let mode = mode_text(meta.kind, meta.perm);
        let file = file(place, &meta, details, xattrs);
        if self.args.json { output::json(&file) } else { output::print(file.text(place, &mode).as_bytes()) }
    }
}

fn file(place: &Inside, meta: &Meta, details: Details, xattrs: Vec<String>) -> File {
    File {
        facts: FileFacts::of(meta, place, &place.path),
        atime: Reported(meta.atime),
        mtime: Reported(meta.mtime),
        ctime: Reported(details.ctime),
        birth: details.birth.map(Reported),
        generation: details.generation,
        flags: details.flags,
        xattrs,
        runs: details.runs,
    }
}

impl File {
    fn text(&self, place: &Inside, mode: &str) -> String {
        let FileFacts { kind, ino, mode: octal, nlink, uid, gid, size, sectors, rdev, .. } = &self.facts;
        let mut text = format!(
            "{}: {kind}, inode {ino}\n  {mode} ({octal}) links {nlink} uid {uid} gid {gid} size {size} sectors {sectors}",
            output::name(&place.path),
        );
        if let Some(Rdev { major, minor }) = rdev {
            text += &format!(" device {major}, {minor}");
        }
        if let (Some(generation), Some(flags)) = (self.generation, self.flags) {
            text += &format!(" generation {generation} flags {flags:#x}");
        }
        text += &format!(
            "\n  access              {}\n  change of contents  {}\n  change of inode     {}\n  birth               {}\n",
            self.atime,
            self.mtime,
            self.ctime,
            self.birth.map_or("unknown".to_owned(), |birth| birth.to_string()),
        );
        for xattr in &self.xattrs {
            text += &format!("  attribute {xattr}\n");
        }
        for FileRun { file_block, volume_block, blocks } in self.runs.iter().flatten() {
            let (file_end, volume_end) = (file_block + blocks, volume_block + blocks);
            text += &format!("  blocks {file_block}..{file_end} at {volume_block}..{volume_end}\n");
        }
        text
    }
}

/// Writes one `name value` line for each number and text; lists are shown elsewhere.
fn flatten(prefix: &str, value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&name, value, text);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {}
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(plain).collect();
            *text += &format!("{prefix:<28} {}\n", items.join(","));
        }
        other => *text += &format!("{prefix:<28} {}\n", plain(other)),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| output::name(text.as_bytes()))
}

/// Writes the table of the disk's requests by operation, kind and cause.
pub(crate) fn requests_table(disk: &Value) -> String {
    let Some(counts) = disk["counts"].as_array() else { return String::new() };
    let mut text =
        format!("\n{:<8} {:<12} {:<10} {:>10} {:>12} {:>10}\n", "op", "kind", "cause", "requests", "bytes", "mean");
    for count in counts {
        let (requests, bytes) = (count["requests"].as_u64().unwrap_or(0), count["bytes"].as_u64().unwrap_or(0));
        text += &format!(
            "{:<8} {:<12} {:<10} {requests:>10} {:>12} {:>10}\n",
            plain(&count["verb"]),
            plain(&count["kind"]),
            plain(&count["cause"]),
            output::size(bytes),
            output::size(bytes / requests.max(1)),
        );
    }
    for verb in ["read", "write"] {
        let of_verb = || counts.iter().filter(|count| count["verb"] == verb);
        let sum = |field: &str| of_verb().filter_map(|count| count[field].as_u64()).sum::<u64>();
        text += &totals(verb, sum("requests"), sum("bytes"));
    }
    text
}

fn totals(verb: &str, requests: u64, bytes: u64) -> String {
    let mean = output::size(bytes / requests.max(1));
    format!("{verb:<8} {:<23} {requests:>10} {:>12} {mean:>10}\n", "in all", output::size(bytes))
}
