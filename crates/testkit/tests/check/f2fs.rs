//! The F2FS checker and fsck.f2fs, field by field: what the tool calls damaged, our checker calls damaged as well, and
//! what only ours calls damaged is of a kind that the tool is known not to look at.
//!
//! Every field of `mutate/f2fs_fields.rs` gets a few values, one at a time, with right checksums around it. Beside
//! that, seeds change two fields at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use moafs_disk::mem::MemDisk;
use moafs_f2fs::check::{CheckOptions, Finding, Issue, check};
use moafs_testkit::f2fs_disk::{BLOCK, SUPERBLOCKS};
use moafs_testkit::family::{self, F2fs, Family, look_with};
use moafs_testkit::image::Geometry;
use moafs_testkit::judges::fsck_f2fs;
use moafs_testkit::mutate::f2fs::{seal, seal_checksums};
use moafs_testkit::mutate::golden::{self, Golden};
use moafs_testkit::mutate::{Field, Mutation};
use moafs_testkit::volume::Mounter as _;
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Vfs};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{FieldValues, damage, judge_all, numbers, words};

/// Mutants of one field that the plain run takes.
const FIELDS: u64 = 300;
/// Mutants of two fields that the plain run and the long one take.
const PAIRS: [u64; 2] = [60, 800];

/// The opinions about a damaged image.
enum Opinions {
    Same,
    /// Only the tool complains, with this.
    OnlyTheirs(String),
    /// Only our checker complains, with these kinds of issues.
    OnlyOurs(Vec<String>),
}

fn images() -> Vec<Golden> {
    let mut images = golden::all::<F2fs>();
    images.extend(unclean("f2fs-64m", "orphans", leave_orphans));
    images.extend(unclean("f2fs-64m", "chain", leave_chain));
    images.extend(unclean("f2fs-ours-features", "chain-features", leave_chain));
    images
}

/// Makes an image of a volume as a power cut leaves it after `work`.
fn unclean(geometry: &str, name: &'static str, work: fn(&Vfs<moafs_f2fs::F2fs>)) -> Option<Golden> {
    let geometry: Geometry = family::geometry::<F2fs>(geometry).expect("a known geometry");
    let disk = golden::populated::<F2fs>(&geometry)?;
    let vfs = F2fs::mounter(0).mount(disk.clone(), false).expect("the volume mounts");
    work(&vfs);
    let disk: MemDisk = Arc::clone(&disk).snapshot();
    drop(vfs.close());
    let layout = F2fs::layout(&disk, &geometry);
    Some(Golden { name, disk, bytes: geometry.bytes(), layout })
}

fn new_file(vfs: &Vfs<moafs_f2fs::F2fs>, name: &str) -> Ino {
    let new = NewFile { kind: FileKind::Regular, perm: 0o600, umask: 0, rdev: 0, target: None };
    let name = Name::new(name.as_bytes()).expect("a legal name");
    let ino = vfs.create(&Credentials::root(), vfs.shape().root, name, &new).expect("the file is created").ino;
    vfs.write(&Credentials::root(), ino, 0, &[7; 40 << 10], false).expect("the file is written");
    ino
}

/// Files that are open and have no name at the last checkpoint.
fn leave_orphans(vfs: &Vfs<moafs_f2fs::F2fs>) {
    for name in ["gone-1", "gone-2", "gone-3"] {
        new_file(vfs, name);
        let name = Name::new(name.as_bytes()).expect("a legal name");
        vfs.unlink(&Credentials::root(), vfs.shape().root, name).expect("the file is unlinked");
    }
    vfs.sync().expect("the volume is synced");
}

/// Files fsynced since the last checkpoint: two new ones, and one that was there.
fn leave_chain(vfs: &Vfs<moafs_f2fs::F2fs>) {
    let old = new_file(vfs, "old");
    vfs.sync().expect("the volume is synced");
    vfs.write(&Credentials::root(), old, 8 << 10, &[9; 8 << 10], false).expect("the file is written");
    for ino in [old, new_file(vfs, "new-1"), new_file(vfs, "new-2")] {
        vfs.fsync(ino, false).expect("the file is fsynced");
    }
}

fn is_checksum(field: &Field) -> bool {
    field.what.ends_with("crc") || field.what.ends_with("i_inode_checksum")
}

/// Returns the fields' new values, with right checksums. A change of the first superblock is copied to the second; one
/// of the second stays alone.
fn with_seal(fields: &[(&Field, u64)]) -> Vec<Mutation> {
    let second = SUPERBLOCKS[1]..2 * BLOCK;
    let alone = fields.iter().any(|(field, _)| second.contains(&field.at));
    let unsealed = fields.iter().any(|(field, _)| is_checksum(field));
    let mut mutations: Vec<Mutation> =
        fields.iter().map(|(field, value)| Mutation::Set((*field).clone(), *value)).collect();
    if !unsealed {
        mutations.push(Mutation::CommitPoint(if alone { seal_checksums } else { seal }));
    }
    mutations
}

fn judge(disk: &MemDisk, loud: bool) -> Opinions {
    let Some(theirs) = look_with(disk, fsck_f2fs::run).expect("a scratch image can be written") else {
        return Opinions::Same;
    };
    let ours = check(disk, &CheckOptions::default(), &mut |_| {});
    if loud {
        let issues = ours.as_ref().map(|ours| ours.findings.iter().map(|found| found.issue.to_string()).collect());
        let lines: Vec<String> = issues.unwrap_or_else(|error| vec![error.to_string()]);
        println!("exit {:?}\n{}\nOURS\n{}", theirs.exit, theirs.text, lines.join("\n"));
    }
    // A volume that moafs refuses to check is not called clean.
    let complains = ours.as_ref().map_or(true, |ours| ours.exit_code() != 0);
    // The tool ends at a chain that it cannot follow; that says nothing about the checkpoint. A mount by moafs ends the
    // chain there, so our checker calls it harmless, but it has to name it.
    let names_chain = || ours.as_ref().is_ok_and(|ours| ours.findings.iter().any(is_chain));
    if theirs.refuses_chain() && names_chain() {
        return match F2fs::mounter(0).mount(Arc::new(disk.snapshot()), false) {
            Ok(_) => Opinions::Same,
            Err(error) => Opinions::OnlyTheirs(format!("it refuses the chain, and a mount says {error}")),
        };
    }
    match (theirs.spotless(), complains) {
        (false, false) => Opinions::OnlyTheirs(format!("exit {:?}: {}", theirs.exit, theirs.faults.join("; "))),
        (true, true) => Opinions::OnlyOurs(match ours {
            Ok(ours) => ours.findings.iter().map(|found| kind(&found.issue)).collect(),
            Err(error) => vec![error.to_string()],
        }),
        _ => Opinions::Same,
    }
}

fn is_chain(finding: &Finding) -> bool {
    matches!(finding.issue, Issue::Chain { .. })
}

fn kind(issue: &Issue) -> String {
    let text = format!("{issue:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// Kinds of issues that only our checker found, each with the number of mutants and one of them.
#[derive(Default)]
struct OnlyOurs(Mutex<BTreeMap<Vec<String>, (u64, String)>>);

impl OnlyOurs {
    /// Judges a mutant: fails if fsck.f2fs complains of one that our checker accepts.
    fn judge(&self, image: &Golden, mutations: &[Mutation], loud: bool) -> Result<(), String> {
        match judge(&damage(image, mutations), loud) {
            Opinions::Same => Ok(()),
            Opinions::OnlyTheirs(said) => Err(format!("{}\n    {said}", words(mutations))),
            Opinions::OnlyOurs(mut kinds) => {
                kinds.sort();
                kinds.dedup();
                let mut all = self.0.lock().expect("no test panics with it");
                let first = || (0, format!("{}: {}", image.name, words(mutations)));
                all.entry(kinds).or_insert_with(first).0 += 1;
                Ok(())
            }
        }
    }
}

impl Drop for OnlyOurs {
    fn drop(&mut self) {
        for (kinds, (count, first)) in self.0.get_mut().expect("no test panics with it") {
            println!("only ours: {count} mutants have {}; one is {first}", kinds.join(", "));
        }
    }
}

#[test]
fn the_f2fs_checker_finds_what_fsck_f2fs_finds_in_each_field() {
    let images = images();
    for image in &images {
        println!("{}: {} fields", image.name, image.layout.fields().len());
        assert!(matches!(judge(&image.disk, false), Opinions::Same), "{}: the undamaged image", image.name);
    }
    let (values, only_ours) = (FieldValues::of(&images), OnlyOurs::default());
    let place = |number| values.place(number);
    judge_all(&images, "field", numbers(FIELDS, values.count()), place, |index, number, loud| {
        let mutations = with_seal(&[values.get(&images, index, number)]);
        only_ours.judge(&images[index], &mutations, loud)
    });
}

#[test]
fn the_f2fs_checker_finds_what_fsck_f2fs_finds_in_two_fields() {
    let images = images();
    let (values, only_ours) = (FieldValues::of(&images), OnlyOurs::default());
    let place = |seed| (seed as usize % images.len(), seed);
    judge_all(&images, "pair", numbers(PAIRS[0], PAIRS[1]), place, |index, seed, loud| {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let count = values.of_images[index].len() as u64;
        let pair = [0, 1].map(|_| values.get(&images, index, rng.random_range(0..count)));
        only_ours.judge(&images[index], &with_seal(&pair), loud)
    });
}
