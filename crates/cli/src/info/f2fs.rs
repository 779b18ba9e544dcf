//! The part of `moafs info` for F2FS volumes.

use std::path::Path;

use moafs_disk::SharedDisk;
use moafs_f2fs::F2fs;
use moafs_f2fs::engine::report::{Head, SegmentCounts, SegmentFacts, SegmentState};
use moafs_f2fs::format::checkpoint::CpFlags;
use moafs_f2fs::format::superblock::Geometry;
use moafs_f2fs::format::{BLOCK, Log, SEGMENT_BLOCKS};
use serde::Serialize;
use uuid::Uuid;

use super::facts::{Facts, Tables};
use super::found::Found;
use crate::error::{CliError, Result};
use crate::mounted::Mounted;
use crate::output;

/// Classes of the histogram of utilization: tenths, and full segments.
const CLASSES: usize = 11;
/// Width of the histogram's bars.
const BAR: usize = 40;

#[derive(Debug, Serialize)]
pub(super) struct F2fsFacts {
    superblock: Superblock,
    checkpoint: Checkpoint,
}

#[derive(Debug, Serialize)]
struct Superblock {
    format: &'static str,
    label: String,
    uuid: String,
    features: Vec<String>,
    made_by: String,
    written_by: String,
    block_size: usize,
    blocks: u64,
    segment_blocks: usize,
    segments: u32,
    sections: u32,
    segs_per_sec: u32,
    secs_per_zone: u32,
    areas: Vec<Area>,
    hot_extensions: Vec<String>,
    cold_extensions: Vec<String>,
}

/// The place of a structure, in blocks.
#[derive(Debug, Serialize)]
struct Area {
    what: &'static str,
    first: u64,
    blocks: u64,
}

#[derive(Debug, Serialize)]
struct Checkpoint {
    version: u64,
    pack: u32,
    state: String,
    flags: Vec<String>,
    user_blocks: u64,
    valid_blocks: u64,
    valid_nodes: u32,
    valid_inodes: u32,
    orphans: usize,
    free_segments: u32,
    reserved_segments: u32,
    overprovision_segments: u32,
    mounted_s: u64,
    logs: Vec<Position>,
}

/// The position at which a log writes next.
#[derive(Debug, Serialize)]
struct Position {
    log: Log,
    segment: u32,
    offset: u16,
    recycling: bool,
}

#[derive(Debug, Serialize)]
struct Segments {
    counts: SegmentCounts,
    logs: Vec<LogUse>,
    /// Segments that are not free, by utilization.
    utilization: Vec<Class>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    table: Vec<Row>,
}

/// The segments that a log has written: they show the temperature assumed for the volume's data.
#[derive(Debug, Serialize)]
struct LogUse {
    log: Log,
    segments: u32,
    open: u32,
    partial: u32,
    full: u32,
    valid_blocks: u64,
    utilization: Option<f64>,
}

/// Segments with at least this share of valid blocks, and less than the next class's.
#[derive(Debug, Default, Clone, Serialize)]
struct Class {
    from_percent: usize,
    data: u32,
    nodes: u32,
}

#[derive(Debug, Serialize)]
struct Row {
    segment: u32,
    log: Log,
    #[serde(flatten)]
    facts: SegmentFacts,
}

/// Reads the superblock and the checkpoint of a volume.
fn read_head(image: &Path, disk: &SharedDisk) -> Result<Head> {
    Head::read(disk).map_err(|error| CliError::Open { image: image.to_owned(), error })
}

pub(super) fn facts(image: &Path, disk: &SharedDisk, mount: Option<&Mounted>) -> Result<F2fsFacts> {
    let head = read_head(image, disk)?;
    let mut checkpoint = Checkpoint::of(&head);
    if let Some(mount) = mount {
        checkpoint.state = mount.state();
    }
    Ok(F2fsFacts { superblock: Superblock::of(&head), checkpoint })
}

impl Tables for F2fs {
    fn tables(&self, table: bool) -> Found {
        let segments = Segments::of(&self.segments(), table);
        let fields = [("segments".to_owned(), serde_json::to_value(&segments).unwrap_or_default())];
        Found { fields: fields.into_iter().collect(), text: segments.text() }
    }
}

impl Superblock {
    fn of(head: &Head) -> Superblock {
        let superblock = &head.superblock;
        let geo = superblock.geometry();
        Superblock {
            format: "f2fs",
            label: output::name(superblock.label.as_bytes()),
            uuid: Uuid::from_bytes(superblock.uuid).to_string(),
            features: superblock.features.names(),
            made_by: output::name(superblock.init_version.trim().as_bytes()),
            written_by: output::name(superblock.version.trim().as_bytes()),
            block_size: BLOCK,
            blocks: geo.block_count,
            segment_blocks: SEGMENT_BLOCKS,
            segments: geo.segments,
            sections: geo.sections,
            segs_per_sec: geo.segs_per_sec,
            secs_per_zone: geo.secs_per_zone,
            areas: areas(&geo),
            hot_extensions: superblock.hot_extensions.clone(),
            cold_extensions: superblock.cold_extensions.clone(),
        }
    }
}

fn areas(geo: &Geometry) -> Vec<Area> {
    let main_end = u64::from(geo.main) + u64::from(geo.segments) * SEGMENT_BLOCKS as u64;
    let area = |(what, first, end): (&'static str, u32, u64)| {
        let first = u64::from(first);
        Area { what, first, blocks: end.saturating_sub(first) }
    };
    let areas = [
        ("superblocks", 0, 2),
        ("checkpoints", geo.cp, geo.sit.into()),
        ("SIT", geo.sit, geo.nat.into()),
        ("NAT", geo.nat, geo.ssa.into()),
        ("SSA", geo.ssa, geo.main.into()),
        ("main area", geo.main, main_end),
    ];
    areas.into_iter().map(area).collect()
}

impl Checkpoint {
    fn of(head: &Head) -> Checkpoint {
        let checkpoint = &head.checkpoint;
        let position = |log: Log| {
            let at = checkpoint.current[log as usize];
            Position { log, segment: at.segno.0, offset: at.offset, recycling: at.recycling }
        };
        Checkpoint {
            version: checkpoint.version,
            pack: head.pack,
            state: state(checkpoint.flags).to_owned(),
            flags: checkpoint.flags.iter_names().map(|(name, _)| name.to_lowercase()).collect(),
            user_blocks: checkpoint.user_blocks,
            valid_blocks: checkpoint.valid_blocks,
            valid_nodes: checkpoint.valid_nodes,
            valid_inodes: checkpoint.valid_inodes,
            orphans: head.orphans,
            free_segments: checkpoint.free_segments,
            reserved_segments: checkpoint.reserved_segments,
            overprovision_segments: checkpoint.overprovision_segments,
            mounted_s: checkpoint.elapsed,
            logs: Log::ALL.map(position).into(),
        }
    }
}

fn state(flags: CpFlags) -> &'static str {
    if flags.intersects(CpFlags::ERROR | CpFlags::FSCK) {
        "with errors"
    } else if flags.contains(CpFlags::DISABLED) {
        "with checkpoints switched off"
    } else if flags.contains(CpFlags::UMOUNT) {
        "clean"
    } else {
        "in use, or not unmounted cleanly"
    }
}

impl Segments {
    fn of(all: &[SegmentFacts], with_table: bool) -> Segments {
        let mut counts = SegmentCounts::default();
        let mut utilization: Vec<Class> =
            (0..CLASSES).map(|class| Class { from_percent: class * 10, ..Class::default() }).collect();
        let is_used = |segment: &&SegmentFacts| !matches!(segment.state, SegmentState::Free | SegmentState::Prefree);
        all.iter().for_each(|segment| counts.add(segment.state));
        for segment in all.iter().filter(is_used) {
            let class = &mut utilization[usize::from(segment.valid) * 10 / SEGMENT_BLOCKS];
            *(if segment.log.is_node() { &mut class.nodes } else { &mut class.data }) += 1;
        }
        let logs = Log::ALL.map(|log| LogUse::of(log, all.iter().filter(is_used).filter(|segment| segment.log == log)));
        let row = |segment: &SegmentFacts| Row { segment: segment.segno.0, log: segment.log, facts: *segment };
        let table = if with_table { all.iter().filter(is_used).map(row).collect() } else { Vec::new() };
        Segments { counts, logs: logs.into(), utilization, table }
    }

    fn text(&self) -> String {
        let SegmentCounts { free, prefree, open, partial, full } = self.counts;
        let mut text = format!(
            "\nsegments      {free} free, {prefree} prefree, {open} open, {partial} partly used, {full} full\n\
             {:<13} {:>8} {:>6} {:>12} {:>6} {:>13}  utilization\n",
            "log", "segments", "open", "partly used", "full", "valid blocks"
        );
        for log in &self.logs {
            let utilization = log.utilization.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
            text += &format!(
                "{:<13} {:>8} {:>6} {:>12} {:>6} {:>13} {utilization:>12}\n",
                log.log.to_string(),
                log.segments,
                log.open,
                log.partial,
                log.full,
                log.valid_blocks,
            );
        }
        text += "\nutilization       data   nodes  segments that are not free\n";
        let most = self.utilization.iter().map(|class| class.data + class.nodes).max().unwrap_or(0).max(1) as usize;
        for class in &self.utilization {
            let bar = "#".repeat((class.data + class.nodes) as usize * BAR / most);
            let range = match class.from_percent {
                100 => "full".to_owned(),
                from => format!("{from}..{} %", from + 10),
            };
            let line = format!("{range:>13} {:>8} {:>7}  {bar}", class.data, class.nodes);
            text += &format!("{}\n", line.trim_end());
        }
        if !self.table.is_empty() {
            text += "\n   segment  log          valid  state\n";
        }
        for Row { segment, log, facts } in &self.table {
            let state = format!("{:?}", facts.state).to_lowercase();
            text += &format!("{segment:>10}  {:<10} {:>7}  {state}\n", log.to_string(), facts.valid);
        }
        text
    }
}

impl LogUse {
    fn of<'a>(log: Log, segments: impl Iterator<Item = &'a SegmentFacts>) -> LogUse {
        let mut counts = SegmentCounts::default();
        let mut valid_blocks = 0;
        for segment in segments {
            counts.add(segment.state);
            valid_blocks += u64::from(segment.valid);
        }
        let SegmentCounts { open, partial, full, .. } = counts;
        let segments = open + partial + full;
        let all = u64::from(segments) * SEGMENT_BLOCKS as u64;
        let utilization = (all > 0).then(|| valid_blocks as f64 / all as f64);
        LogUse { log, segments, open, partial, full, valid_blocks, utilization }
    }
}

impl Facts for F2fsFacts {
    fn text(&self, image: &Path) -> String {
        self.superblock.text(image, &self.checkpoint.state) + &self.checkpoint.text()
    }
}

impl Superblock {
    fn text(&self, image: &Path, state: &str) -> String {
        let list = |words: &[String]| {
            if words.is_empty() { "none".to_owned() } else { output::name(words.join(" ").as_bytes()) }
        };
        let label = if self.label.is_empty() { "no label" } else { &self.label };
        let area = |area: &Area| format!("{} {}..{}", area.what, area.first, area.first + area.blocks);
        let areas: Vec<String> = self.areas.iter().map(area).collect();
        format!(
            "{}: f2fs volume, {}, {label}, {}, {state}\n\
             features      {}\n\
             made by       {}; written by {}\n\
             blocks        {} of {} bytes\n\
             areas         {}\n\
             main area     {} segments of {} blocks; {} in a section, {} sections in a zone\n\
             hot files     {}\n\
             cold files    {}\n",
            output::path(image),
            output::size(self.blocks.saturating_mul(BLOCK as u64)),
            self.uuid,
            list(&self.features),
            self.made_by,
            self.written_by,
            self.blocks,
            self.block_size,
            areas.join(", "),
            self.segments,
            self.segment_blocks,
            self.segs_per_sec,
            self.secs_per_zone,
            list(&self.hot_extensions),
            list(&self.cold_extensions),
        )
    }
}

impl Checkpoint {
    fn text(&self) -> String {
        let free = self.user_blocks.saturating_sub(self.valid_blocks);
        let position = |at: &Position| {
            let how = if at.recycling { " (recycling)" } else { "" };
            format!("{} {}+{}{how}", at.log, at.segment, at.offset)
        };
        let positions: Vec<String> = self.logs.iter().map(position).collect();
        format!(
            "for files     {} blocks; {} in use by {} inodes and {} nodes, {free} free ({}, {})\n\
             kept back     {} segments, {} of them so that cleaning can always go on\n\
             checkpoint    version {:#x} in pack {}: {}; {} orphans; mounted {} s in all\n\
             logs          {}\n",
            self.user_blocks,
            self.valid_blocks,
            self.valid_inodes,
            self.valid_nodes,
            output::size(free.saturating_mul(BLOCK as u64)),
            output::percent(free, self.user_blocks),
            self.overprovision_segments,
            self.reserved_segments,
            self.version,
            self.pack,
            self.flags.join(" "),
            self.orphans,
            self.mounted_s,
            positions.join(", "),
        )
    }
}
