//! The ext checker and e2fsck agree on which images are damaged, and a repaired image is clean for both.
//!
//! What only ours complains of is of a kind that e2fsck is known to pass over ([`is_known`]). It also guesses that a
//! special file whose first pointer names a directory block was a directory; ours believes the inode.

use moafs_disk::mem::MemDisk;
use moafs_ext::check::{CheckError, CheckOptions, Issue, Mode, Outcome, Severity, check};
use moafs_ext::format::InodeNo;
use moafs_runtime::Timestamp;
use moafs_testkit::family::{Ext, look_with};
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
    let images = golden::all::<Ext>();
    let place = |seed| (seed as usize % images.len(), seed);
    judge_all(&images, "seed", numbers(SEEDS[0], SEEDS[1]), place, |index, seed, loud| {
        let image = &images[index];
        judge(image, &mutations(&image.layout, &image.disk, seed), loud)
    });
}

#[test]
fn the_ext_checker_agrees_with_e2fsck_about_each_field() {
    let images = golden::all::<Ext>();
    let values = FieldValues::of(&images);
    judge_all(
        &images,
        "field",
        numbers(FIELDS, values.count()),
        |number| values.place(number),
        |index, number, loud| {
            let (field, value) = values.get(&images, index, number);
            judge(&images[index], &[Mutation::Set(field.clone(), value)], loud)
        },
    );
}

fn look(disk: &MemDisk, mode: Mode) -> Result<Outcome, CheckError> {
    check(disk, &CheckOptions { mode, force: true, superblock: None, now: NOW }, &mut |_| ())
}

/// Returns true for damage of which e2fsck says nothing.
fn is_known(issue: &Issue) -> bool {
    match issue {
        // It does not follow the list when it only looks.
        Issue::OrphanList { .. } => true,
        // It takes features on a volume of revision 0; the kernel does not.
        Issue::RevisionFeatures { .. } => true,
        // Fields of unused inodes, of the journal and in the resize inode's map.
        Issue::ReservedInode { .. } | Issue::ResizeInode { .. } | Issue::Journal { .. } => true,
        Issue::InodeExtraSize { inode, .. } | Issue::XattrBlock { inode, .. } => *inode == InodeNo::JOURNAL,
        // verity without the feature: the kernel refuses to open such a file.
        Issue::InodeFlags { flags, .. } => *flags == 0x10_0000,
        // One block beyond the end, and sizes between the kernel's limit and the map's.
        Issue::Size { stored, should, .. } => *stored > *should || should - stored <= 4096,
        _ => false,
    }
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
    judge_disk(&damage(image, mutations), loud).map_err(|said| format!("{}\n  {said}", words(mutations)))
}

fn judge_disk(disk: &MemDisk, loud: bool) -> Result<(), String> {
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
    let known = looked.findings.iter().all(|found| found.severity == Severity::Warning || is_known(&found.issue));
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
    let again = look(disk, Mode::No).map_err(|error| format!("after the repair: {error}"))?;
    let Some((theirs, text)) = e2fsck_of(disk) else { return Ok(()) };
    if repaired.errors_left {
        return Ok(());
    }
    let guessed = text.contains("but it looks like it is really a directory");
    if !again.findings.is_empty() || (theirs != 0 && !guessed) {
        let first = texts(&repaired);
        return Err(format!("after the repair e2fsck {theirs}\n    {}\n{text}\nfirst:\n    {first}", texts(&again)));
    }
    Ok(())
}
