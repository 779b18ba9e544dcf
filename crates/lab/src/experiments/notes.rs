//! Explanations of differences to the paper: sentences made from the counters, never from guesses.

use std::collections::BTreeMap;

use crate::outcome::Row;
use crate::parameters::Parameters;
use crate::system::System;
use crate::write_cache::WriteCache;

/// The utilization that the sentences are about, where it was run.
const TOLD_UTILIZATION: &str = "30";

/// Returns the notes for all experiments of the paper.
pub(super) fn common(parameters: &Parameters) -> Vec<String> {
    let cache = match parameters.write_cache.unwrap_or(WriteCache::On) {
        WriteCache::On => {
            "The drive's write cache is on and is never told to flush: so did the paper's system (OpenBSD 4.0, wd(4))."
        }
        WriteCache::Flushed => "The drive's write cache is on and is flushed wherever the order of writes asks for it.",
        WriteCache::Off => "The drive's write cache is off: every write waits for the media.",
    };
    vec![
        cache.to_owned(),
        "Memory: of the paper's 256 MB, OpenBSD 4.0 gave 5 % to its buffer cache (12.8 MB) and began to write when a \
         quarter of that was dirty; its syncer waited 30 s. `--set cache=…`, `dirty=…`, `age=…` change it. Processor times are \
         plausible figures of a 1 GHz machine, not measured ones; `time_cpu` shows their share."
            .to_owned(),
        "`ffs-paper` chooses addresses at write(), writes file by file, and its queue sorts without merging; `cowrite-paper` \
         is co-writing to the letter of Figs. 6 and 7 over the same queue, and the paper's percentages are held against \
         these two. `ffs` chooses addresses when data leave and its queue merges; `cowrite` is our co-writing over that \
         queue, with co-reading."
            .to_owned(),
        format!(
            "New directories of all systems are placed alike (`dirs={}`), but those of `cowrite-near` and `cowrite-mount`, \
             which keep them near their parents. The rows of `gain_of_step` or `change_of_step` say what each step from \
             `ffs-paper` to `cowrite-mount` gives by itself.",
            parameters.directories
        ),
    ]
}

/// Writes one sentence for each drive: the requests of each system, and the parts of their time.
pub(super) fn why(rows: &[Row]) -> Vec<String> {
    let drives: Vec<&str> = in_order(rows.iter().filter_map(|row| row.dimensions.get("drive")).map(String::as_str));
    drives.into_iter().filter_map(|drive| why_on(rows, drive)).collect()
}

fn why_on(rows: &[Row], drive: &str) -> Option<String> {
    let dimension = |row: &Row, name: &str| row.dimensions.get(name).cloned().unwrap_or_default();
    let utilizations: Vec<String> =
        in_order(rows.iter().filter(|row| dimension(row, "drive") == drive).map(|row| dimension(row, "utilization")));
    let told = utilizations.iter().find(|at| *at == TOLD_UTILIZATION).or(utilizations.first())?;
    let here = |row: &&Row| dimension(row, "drive") == drive && dimension(row, "utilization") == *told;
    let systems = System::ALL.map(System::name);
    let parts: Vec<String> = systems
        .iter()
        .filter_map(|system| {
            let numbers: BTreeMap<&str, f64> = rows
                .iter()
                .filter(here)
                .filter(|row| row.system == *system && row.dimensions.len() == 2)
                .map(|row| (row.metric.as_str(), row.value))
                .collect();
            sentence(system, &numbers)
        })
        .collect();
    (!parts.is_empty()).then(|| format!("On {drive} at {told} %: {}.", parts.join("; ")))
}

fn sentence(system: &str, numbers: &BTreeMap<&str, f64>) -> Option<String> {
    let get = |name: &str| numbers.get(name).copied();
    let mut text = format!(
        "{system} took {:.1} s for {:.0} requests of {:.1} KiB with {:.0} seeks (seek {:.1} s, rotation {:.1} s, transfer \
         {:.1} s, waiting for the drive's buffer {:.1} s, processor {:.1} s)",
        get("elapsed")?,
        get("requests")?,
        get("request_size")?,
        get("seeks")?,
        get("time_seek")?,
        get("time_rotation")?,
        get("time_transfer")?,
        get("time_wait")?,
        get("time_cpu")?,
    );
    if let Some(destages) = get("destages").filter(|destages| *destages > 0.0) {
        text += &format!(", which left the drive's buffer for the media in {destages:.0} pieces");
    }
    if let (Some(writes), Some(files)) = (get("co_writes"), get("files_per_co_write")) {
        text += &format!(", {writes:.0} co-writes of {files:.1} files each");
    }
    if let Some(runs) = get("runs_per_directory") {
        text += &format!(", a directory's files in {runs:.1} pieces");
    }
    Some(text)
}

/// Returns each value once, in the order of their first appearance.
fn in_order<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    all.for_each(|one| {
        if !once.contains(&one) {
            once.push(one);
        }
    });
    once
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_needs_its_numbers() {
        assert_eq!(sentence("ffs", &BTreeMap::from([("elapsed", 1.0)])), None);
        assert!(why(&[]).is_empty());
    }
}
