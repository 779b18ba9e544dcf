//! `moafs info`: superblock, tables, free space, layout. The differences between formats stand in a
//! module for each.

mod arguments;
mod ext;
mod f2fs;
mod facts;

use std::path::Path;
use std::process::ExitCode;

use moafs_disk::file::FileOptions;
use moafs_vfs::layout::{Collector, KindLayout, Layout};
use serde::Serialize;

pub(crate) use arguments::InfoArgs;
pub(crate) use ext::read_shape as read_ext;
use facts::Facts;

use crate::error::Result;
use crate::format_name::FormatName;
use crate::output;
use crate::volume::{Access, open_disk, with_volume};

/// The facts of a volume, as JSON shows them.
#[derive(Debug, Serialize)]
struct Info<'a, F: Serialize> {
    image: &'a Path,
    /// Facts that only this format has.
    #[serde(flatten)]
    facts: F,
    #[serde(skip_serializing_if = "Option::is_none")]
    layout: Option<Layout>,
}

impl InfoArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let disk = open_disk(&self.image, FileOptions::reader())?.disk;
        match FormatName::on_disk(&self.image, &disk)? {
            FormatName::Ext => self.tell(ext::facts(&self, &disk)?),
            FormatName::F2fs => self.tell(f2fs::facts(&self, &disk)?),
        }
    }

    fn tell(&self, facts: impl Facts) -> Result<ExitCode> {
        let layout = if self.header { None } else { Some(self.survey()?) };
        if self.json {
            output::json(&Info { image: &self.image, facts, layout })?;
        } else {
            let text = facts.text(&self.image) + &layout.as_ref().map(layout_text).unwrap_or_default();
            output::print(text.as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn survey(&self) -> Result<Layout> {
        let mut collector = Collector::new(self.scattered);
        with_volume!(&self.image, Access::Read, |volume| volume.survey(&mut collector))?;
        Ok(collector.finish())
    }
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
        text += &format!("{range:>23} {:>9} runs {:>11} blocks {bar}\n", class.runs, class.blocks);
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
