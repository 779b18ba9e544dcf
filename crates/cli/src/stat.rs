//! `moafs stat`: shows the counters of a mount, or the attributes of a file on a volume.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use moafs_mount::mount_table;
use moafs_vfs::Format;
use moafs_vfs::api::Stat;
use serde::Serialize;
use serde_json::Value;

use crate::error::{CliError, Result};
use crate::files::ls::{kind_name, mode_text};
use crate::files::tree::Tree;
use crate::files::volume_tree::VolumeTree;
use crate::output;
use crate::place::{Inside, Place};
use crate::volume::{Access, Volume, with_volume};

/// Show a mount's counters, or a file's attributes and place on its volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs stat /mnt                               requests, cache, failures of the mount
  moafs stat --json /mnt | jq .disk
  moafs stat disk.img:/etc/fstab                attributes, and which blocks it has")]
pub(crate) struct StatArgs {
    /// A directory of a mount, or IMAGE:PATH
    what: OsString,
    /// PATH, if it was not given with the image
    path: Option<OsString>,
    /// Print the counters or the attributes as JSON
    #[arg(long)]
    json: bool,
}

/// The attributes of a file, as JSON shows them.
#[derive(Debug, Serialize)]
struct File {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    ino: u64,
    kind: &'static str,
    mode: String,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
    sectors: u64,
    generation: u32,
    flags: u32,
    atime: String,
    mtime: String,
    ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    birth: Option<String>,
    xattrs: Vec<String>,
    /// Runs of blocks: first block in the file, first block on the volume, length. Holes are left out.
    runs: Vec<[u64; 3]>,
}

/// Reads `.moafs/stats` of the mount that `path` lies in.
pub(crate) fn of_mount(path: &Path) -> Result<Value> {
    let Some(entry) = mount_table::mount_of(path) else {
        let shown = output::path(path);
        return Err(CliError::Usage(format!("{shown} lies in no mount of moafs (of an image: moafs stat {shown}:/)")));
    };
    let stats: PathBuf = entry.target.join(".moafs/stats");
    let text = std::fs::read(&stats).map_err(CliError::host("reading", &stats))?;
    serde_json::from_slice(&text).map_err(|error| CliError::host("understanding", &stats)(error.into()))
}

impl StatArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match (Place::parse(&self.what), &self.path) {
            (Place::Host(path), None) if !path.is_file() => self.show_mount(&path)?,
            (_, path) => {
                let place = Inside::parse(&self.what, path.as_ref())?;
                with_volume!(&place.image, Access::Read, |volume| self.show_file(volume, &place))?;
            }
        }
        Ok(ExitCode::SUCCESS)
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

    fn show_file<F: Format>(&self, volume: &Volume<F>, place: &Inside) -> Result<()> {
        let tree = VolumeTree::new(&volume.vfs, &place.image);
        let missing = || CliError::Usage(format!("{} does not exist", place.describe()));
        let node = tree.walk(&place.path)?.ok_or_else(missing)?;
        let stat = tree.stat(&node)?;
        let xattrs = tree.xattrs(&node)?.iter().map(|(name, _)| output::name(name)).collect();
        let file = file(&stat, place, xattrs, tree.runs(&node, stat.attr.size)?);
        if self.json { output::json(&file) } else { output::print(file.text(&stat).as_bytes()) }
    }
}

fn file(stat: &Stat, place: &Inside, xattrs: Vec<String>, runs: Vec<[u64; 3]>) -> File {
    let attr = &stat.attr;
    File {
        path: String::from_utf8_lossy(&place.path).into_owned(),
        path_hex: output::hex_unless_text(&place.path),
        ino: stat.ino.0,
        kind: kind_name(attr.kind),
        mode: format!("{:04o}", attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        sectors: stat.sectors,
        generation: attr.generation,
        flags: attr.flags,
        atime: output::time(attr.atime),
        mtime: output::time(attr.mtime),
        ctime: output::time(attr.ctime),
        birth: attr.crtime.map(output::time),
        xattrs,
        runs,
    }
}

impl File {
    fn text(&self, stat: &Stat) -> String {
        let mode = mode_text(stat.attr.kind, stat.attr.perm);
        let mut text = format!(
            "{}: {}, inode {}\n  {mode} ({}) links {} uid {} gid {} size {} sectors {} generation {} flags {:#x}\n  \
             access {}  change of contents {}  of inode {}  birth {}\n",
            output::name(self.path.as_bytes()),
            self.kind,
            self.ino,
            self.mode,
            self.nlink,
            self.uid,
            self.gid,
            self.size,
            self.sectors,
            self.generation,
            self.flags,
            self.atime,
            self.mtime,
            self.ctime,
            self.birth.as_deref().unwrap_or("unknown"),
        );
        for xattr in &self.xattrs {
            text += &format!("  attribute {xattr}\n");
        }
        for [lbn, start, len] in &self.runs {
            text += &format!("  blocks {lbn}..{} at {start}..{}\n", lbn + len, start + len);
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
