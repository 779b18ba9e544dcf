//! The ext checker and e2fsck agree on which images are damaged, and a repaired image is clean for both.
//!
//! If only ours complains, then of a kind that e2fsck is known to pass over ([`is_known`]). It also guesses that a
//! special file whose first pointer names a directory block was a directory; ours believes the inode.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::check::{CheckError, CheckOptions, Issue, Mode, Outcome, Severity, check_volume};
use moafs_ext::format::InodeNo;
use moafs_runtime::Timestamp;
use moafs_testkit::family::{Ext, Ext4, Family, look_with};
use moafs_testkit::judges::e2fsck;
use moafs_testkit::mutate::golden::{self, Golden};
use moafs_testkit::mutate::{Mutation, mutations};

use super::{FieldValues, damage, judge_all, numbers, words};

/// Mutants of the plain run, and of the long one, that are drawn from a seed.
const SEEDS: [u64; 2] = [150, 8000];
/// Mutants of one field that the plain run takes.
const FIELDS: u64 = 100;
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };

#[test]
fn the_ext_checker_agrees_with_e2fsck_and_heals() {
    agrees_about_seeds::<Ext>();
}

#[test]
fn the_ext4_checker_agrees_with_e2fsck_and_heals() {
    agrees_about_seeds::<Ext4>();
}

#[test]
fn the_ext_checker_agrees_with_e2fsck_about_each_field() {
    agrees_about_fields::<Ext>();
}

#[test]
fn the_ext4_checker_agrees_with_e2fsck_about_each_field() {
    agrees_about_fields::<Ext4>();
}

fn agrees_about_seeds<F: Family>() {
    let images = golden::all::<F>();
    let place = |seed| (seed as usize % images.len(), seed);
    judge_all(&images, "seed", numbers(SEEDS[0], SEEDS[1]), place, |index, seed, loud| {
        let image = &images[index];
        judge(image, &mutations(&image.layout, &image.disk, seed), loud)
    });
    tell_excused();
}

fn agrees_about_fields<F: Family>() {
    let images = golden::all::<F>();
    let values = FieldValues::of(&images);
    judge_all(
        &images,
        "field",
        numbers(FIELDS, values.count()),
        |number| values.place(number),
        |index, number, loud| {
            let (field, value) = values.get(&images, index, number);
            let is_checksum = field.what.contains("checksum") || field.what.contains("csum");
            let seal = images[index].layout.seal().filter(|_| !is_checksum).map(Mutation::CommitPoint);
            let mutations: Vec<_> = [Mutation::Set(field.clone(), value)].into_iter().chain(seal).collect();
            judge(&images[index], &mutations, loud)
        },
    );
    tell_excused();
}

fn look(disk: &Arc<MemDisk>, mode: Mode) -> Result<Outcome, CheckError> {
    let shared: SharedDisk = disk.clone();
    check_volume(&shared, &CheckOptions { mode, force: true, superblock: None, now: NOW }, &mut |_| ())
}

/// Returns true for damage of which e2fsck says nothing.
fn is_known(issue: &Issue) -> bool {
    match issue {
        // It does not follow the list when it only looks.
        Issue::OrphanList { .. } => true,
        // It takes features on a volume of revision 0; the kernel does not.
        Issue::RevisionFeatures { .. } => true,
        // Of the resize inode it reads some fields and the number of its block; of unused reserved inodes the mode.
        Issue::ResizeInode { problem } => problem.starts_with("its fields") || problem.contains("does not name"),
        Issue::ReservedInode { mode, .. } => *mode == 0,
        // The kernel takes a journal without a link for a deleted file.
        Issue::LinkCount { inode, .. } => *inode == InodeNo::JOURNAL,
        Issue::InodeExtraSize { inode, .. } => *inode == InodeNo::JOURNAL,
        // It sees no attribute block if the low half of its number is 0; the kernel refuses the inode.
        Issue::XattrBlock { inode, block, .. } => *inode == InodeNo::JOURNAL || block.0.trailing_zeros() >= 32,
        // verity without the feature: the kernel refuses to open such a file.
        Issue::InodeFlags { flags, .. } => *flags == 0x10_0000,
        // It lets a file block's number run over; the kernel refuses the tree.
        Issue::ExtentTree { problem, .. } => problem.ends_with("but the node at 4294967295"),
        // One block beyond the end, and sizes between the kernel's limit and the map's.
        Issue::Size { stored, should, .. } => *stored > *should || should - stored <= 4096,
        _ => false,
    }
}

/// Returns true if all errors are known; those that follow from a node that only ours gives up count as it does.
fn is_all_known(looked: &Outcome) -> bool {
    let errors = || looked.findings.iter().filter(|found| found.severity > Severity::Warning).map(|found| &found.issue);
    let gives_up = errors().any(|issue| matches!(issue, Issue::ExtentTree { .. }) && is_known(issue));
    let follows = |issue: &Issue| {
        gives_up && matches!(issue, Issue::BlocksCount { .. } | Issue::Leaked { .. } | Issue::GroupCount { .. })
    };
    errors().all(|issue| is_known(issue) || follows(issue))
}

/// The errors that were excused in this run, by kind, with the first mutant's words.
static EXCUSED: Mutex<BTreeMap<String, (u64, String)>> = Mutex::new(BTreeMap::new());

fn excuse(issue: &Issue) {
    let kind: String = format!("{issue:?}").chars().take_while(char::is_ascii_alphanumeric).collect();
    let mut excused = EXCUSED.lock().unwrap();
    excused.entry(kind).or_insert((0, issue.to_string())).0 += 1;
}

/// Prints what was excused.
fn tell_excused() {
    for (kind, (count, first)) in &*EXCUSED.lock().unwrap() {
        println!("only ours, known: {count} of {kind}: {first}");
    }
}

/// Returns true if e2fsck complains of nothing but special files of which it guesses that they are directories.
fn only_guesses(text: &str) -> bool {
    let is_said = |line: &&str| {
        let line = line.trim();
        let is_summary = line.contains(" files (") && line.ends_with("blocks");
        let is_frame = line.is_empty() || line.starts_with("Pass ") || line.starts_with("e2fsck ") || is_summary;
        let is_answer = line.ends_with("? no") || line.contains("WARNING: Filesystem still has errors");
        !is_frame && !is_answer
    };
    let mut said = text.lines().filter(is_said).peekable();
    said.peek().is_some() && said.all(|line| line.contains("but it looks like it is really a directory"))
}

fn texts(outcome: &Outcome) -> String {
    let lines = outcome.findings.iter().map(|found| {
        let left = if found.repaired { "" } else { " (left)" };
        format!("{}{left}", found.issue)
    });
    lines.collect::<Vec<_>>().join("\n    ")
}

/// Returns the exit code and all lines of e2fsck on a disk.
fn e2fsck_of(disk: &MemDisk) -> Option<(i32, String)> {
    look_with(disk, |image| e2fsck::run(image, e2fsck::Mode::Look)).unwrap().map(|verdict| (verdict.exit, verdict.text))
}

fn judge(image: &Golden, mutations: &[Mutation], loud: bool) -> Result<(), String> {
    judge_disk(&Arc::new(damage(image, mutations)), loud).map_err(|said| format!("{}\n  {said}", words(mutations)))
}

fn judge_disk(disk: &Arc<MemDisk>, loud: bool) -> Result<(), String> {
    let Some((theirs, text)) = e2fsck_of(disk) else { return Ok(()) };
    let looked = look(disk, Mode::No);
    if loud {
        println!("{text}\n{}", looked.as_ref().map_or_else(ToString::to_string, texts));
    }
    // A volume that moafs refuses to check is not called clean.
    let Ok(looked) = looked else { return Ok(()) };
    let ours = looked.exit_code() != 0;
    // The exit code is 0 if it only offers a repair: the resize inode, counts, orphans, flags of descriptors.
    let complains = theirs != 0 || text.contains("? no") || text.contains("without feature set");
    let known = is_all_known(&looked);
    if (theirs != 0 && !ours) || (ours && !complains && !known) {
        return Err(format!("ours {ours}, e2fsck {theirs}\n    {}\n{text}", texts(&looked)));
    }
    let repaired = match look(disk, Mode::Yes) {
        Ok(repaired) => repaired,
        Err(error) => return Err(format!("the repair cannot be done: {error}")),
    };
    if loud {
        println!("REPAIRED\n    {}", texts(&repaired));
    }
    if ours && !complains {
        looked
            .findings
            .iter()
            .filter(|found| found.severity != Severity::Warning)
            .for_each(|found| excuse(&found.issue));
    }
    let again = look(disk, Mode::No).map_err(|error| format!("after the repair: {error}"))?;
    let Some((theirs, text)) = e2fsck_of(disk) else { return Ok(()) };
    if repaired.errors_left {
        return Ok(());
    }
    if !again.findings.is_empty() || (theirs != 0 && !only_guesses(&text)) {
        let first = texts(&repaired);
        return Err(format!("after the repair e2fsck {theirs}\n    {}\n{text}\nfirst:\n    {first}", texts(&again)));
    }
    Ok(())
}
