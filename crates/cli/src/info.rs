//! `moafs info`: superblock, tables, free space, layout. The differences between formats stand in a
//! module for each.

mod arguments;
mod ext;
mod f2fs;
mod facts;
mod found;

use std::path::Path;
use std::process::ExitCode;

use moafs_disk::SharedDisk;
use moafs_disk::file::FileOptions;
use moafs_vfs::Format;
use moafs_vfs::format::Survey;
use moafs_vfs::layout::{Collector, KindLayout, Layout};
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use arguments::InfoArgs;
use facts::Facts;
pub(crate) use facts::Tables;
pub(crate) use found::Found;

use crate::error::Result;
use crate::format_name::FormatName;
use crate::mounted::{self, Mounted};
use crate::output;
use crate::question::{InfoQuestion, Question};
use crate::volume::{Access, Opened, open_disk, with_volume};

/// The facts of a volume, as JSON shows them.
#[derive(Debug, Serialize)]
struct Info<'a, F: Serialize> {
    image: &'a Path,
    /// Facts that only this format has.
    #[serde(flatten)]
    facts: F,
    #[serde(flatten)]
    found: Option<Map<String, Value>>,
}

impl InfoArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mount = mounted::find(&self.image);
        let options = if mount.is_some() { mounted::beside() } else { FileOptions::reader() };
        let Opened { disk, .. } = open_disk(&self.image, options)?;
        match FormatName::on_disk(&self.image, &disk)? {
            FormatName::Ext => self.tell(ext::facts(&self.image, &disk, mount.as_ref())?, disk, mount.as_ref()),
            FormatName::F2fs => self.tell(f2fs::facts(&self.image, &disk, mount.as_ref())?, disk, mount.as_ref()),
        }
    }

    fn tell(&self, facts: impl Facts, disk: SharedDisk, mount: Option<&Mounted>) -> Result<ExitCode> {
        // The volume is opened anew to look at all of it.
        drop(disk);
        let found = if self.header { None } else { Some(self.look(mount)?) };
        if self.json {
            output::json(&Info { image: &self.image, facts, found: found.map(|found| found.fields) })?;
        } else {
            let text = facts.text(&self.image) + &found.map(|found| found.text).unwrap_or_default();
            output::print(text.as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Looks at the whole volume: of one that is mounted, its daemon does.
    fn look(&self, mount: Option<&Mounted>) -> Result<Found> {
        let question = InfoQuestion { table: self.groups, scattered: self.scattered };
        match mount {
            Some(mount) => mount.ask(&Question::Info(question)),
            None => with_volume!(&self.image, Access::Read, |volume| volume.looking(found(
                volume.vfs.format(),
                &question,
                |to| volume.vfs.format().survey(to)
            ))),
        }
    }
}

/// Looks at a volume, whose files `survey` tells.
pub(crate) fn found<F: Tables>(
    format: &F,
    question: &InfoQuestion,
    survey: impl FnOnce(&mut dyn Survey) -> moafs_vfs::Result<()>,
) -> moafs_vfs::Result<Found> {
    let mut collector = Collector::new(question.scattered);
    survey(&mut collector)?;
    let layout = collector.finish();
    let Found { mut fields, text } = format.tables(question.table);
    fields.insert("layout".to_owned(), serde_json::to_value(&layout).unwrap_or_default());
    Ok(Found { fields, text: text + &layout_text(&layout) })
}

fn layout_text(layout: &Layout) -> String {
    let score = layout.layout_score.map_or("-".to_owned(), |score| format!("{score:.4}"));
    let mut text = format!("\nlayout score  {score}\n");
    for (what, kind) in [("files", &layout.files), ("directories", &layout.directories), ("others", &layout.others)] {
        let KindLayout { files, blocks, pieces, .. } = kind;
        let mean = if *pieces > 0 { format!(" ({:.1} each)", *blocks as f64 / *pieces as f64) } else { String::new() };
        text += &format!("{what:<13} {files} with {blocks} blocks in {pieces} pieces{mean}\n");
    }
    for (what, blocks) in &layout.metadata {
        text += &format!("{what}: {blocks} blocks\n");
    }
    let free = &layout.free;
    text += &format!("\nfree runs     {} with {} blocks, the longest of {}\n", free.runs, free.blocks, free.longest);
    let most = free.classes.iter().map(|class| class.blocks).max().unwrap_or(1).max(1);
    for class in &free.classes {
        let bar = "#".repeat((class.blocks * 40 / most) as usize);
        let range = format!("{}..{}", class.from, class.from * 2 - 1);
        let line = format!("{range:>23} {:>9} runs {:>11} blocks {bar}", class.runs, class.blocks);
        text += &format!("{}\n", line.trim_end());
    }
    if !layout.scattered.is_empty() {
        text += "\nmost scattered files\n       inode  directory     blocks   pieces   score\n";
    }
    for file in &layout.scattered {
        let parent = file.parent.map_or("-".to_owned(), |dir| dir.to_string());
        let score = file.score.value().unwrap_or(1.0);
        text += &format!("{:>12} {parent:>10} {:>10} {:>8}  {score:.4}\n", file.ino, file.blocks, file.pieces);
    }
    text
}
