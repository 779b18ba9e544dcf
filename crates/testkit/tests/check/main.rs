//! The checkers of moafs beside the reference checkers, on damaged images.
//!
//! The plain run takes a sample of the mutants. `MOAFS_CHECK_SEEDS=A..B cargo test -p moafs-testkit --test check` takes
//! others, and `MOAFS_CHECK_SEEDS=all` all of them. A disagreement prints `MOAFS_CHECK=IMAGE:KIND:NUMBER`, which runs
//! that mutant and prints the output of both checkers. `MOAFS_CHECK_IMAGE=FILE` keeps its image.

mod ext;
mod f2fs;

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use moafs_disk::mem::MemDisk;
use moafs_testkit::mutate::{self, Field, Mutation, damaged, golden::Golden};

/// Returns the numbers of the mutants of this run: `sample` of `all`, unless others were asked for.
fn numbers(sample: u64, all: u64) -> Range<u64> {
    let text = std::env::var("MOAFS_CHECK_SEEDS").unwrap_or_else(|_| sample.to_string());
    let (from, to) = text.split_once("..").unwrap_or(("0", &text));
    let number = |text: &str| if text == "all" { all } else { text.parse().expect("a number") };
    number(from).min(all)..number(to).min(all)
}

/// Returns the image and the number of a mutant of this kind that is to be replayed.
fn replayed(kind: &str) -> Option<(String, u64)> {
    let text = std::env::var("MOAFS_CHECK").ok()?;
    let [image, found, number] = text.split(':').collect::<Vec<_>>().try_into().expect("IMAGE:KIND:NUMBER");
    (found == kind).then(|| (image.to_owned(), number.parse().expect("a number")))
}

/// Judges mutants on several threads, or the one that is to be replayed. `judge` gets the number of an image and of a
/// mutant, and whether it shall print what the checkers say; it returns the line of a disagreement, which counts, or
/// only prints it.
fn judge_all(
    images: &[Golden],
    kind: &str,
    mutants: Range<u64>,
    place: impl Fn(u64) -> (usize, u64) + Sync,
    judge: impl Fn(usize, u64, bool) -> Result<(), String> + Sync,
) {
    if std::env::var_os("MOAFS_CHECK").is_some() {
        let Some((name, number)) = replayed(kind) else { return };
        if let Some(index) = images.iter().position(|image| image.name == name) {
            judge(index, number, true).unwrap_or_else(|said| panic!("{said}"));
        }
        return;
    }
    if images.is_empty() {
        return;
    }
    let (next, failed) = (AtomicU64::new(mutants.start), AtomicU64::new(0));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if !mutants.contains(&number) {
                return;
            }
            let (index, number) = place(number);
            if let Err(said) = judge(index, number, false) {
                println!("MOAFS_CHECK={}:{kind}:{number}  {said}", images[index].name);
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::env::var("MOAFS_THREADS").map_or(2, |text| text.parse().expect("a number")) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner();
    println!("{kind}: mutants {mutants:?}, {failed} disagreements");
    assert_eq!(failed, 0, "disagreements, printed above");
}

/// Every field of some images with every value that it is tried with.
struct FieldValues {
    /// Of each image: indices of fields, with values.
    of_images: Vec<Vec<(usize, u64)>>,
}

impl FieldValues {
    fn of(images: &[Golden]) -> FieldValues {
        let of_field = |image: &Golden, index| mutate::values(&image.layout, &image.disk, index).into_iter();
        let of_image = |image: &Golden| {
            let fields = 0..image.layout.fields().len();
            fields.flat_map(|index| of_field(image, index).map(move |value| (index, value))).collect()
        };
        FieldValues { of_images: images.iter().map(of_image).collect() }
    }

    fn count(&self) -> u64 {
        self.of_images.iter().map(|values| values.len() as u64).sum()
    }

    /// Returns the image and the number of a mutant there, in an order that mixes images and structures.
    fn place(&self, number: u64) -> (usize, u64) {
        let mut left = number * 7_368_787 % self.count();
        let index = self.of_images.iter().position(|values| {
            let found = left < values.len() as u64;
            left -= if found { 0 } else { values.len() as u64 };
            found
        });
        (index.expect("the number is within all images"), left)
    }

    /// Returns the field and the value of a mutant.
    fn get<'a>(&self, images: &'a [Golden], index: usize, number: u64) -> (&'a Field, u64) {
        let (field, value) = self.of_images[index][number as usize];
        (&images[index].layout.fields()[field], value)
    }
}

/// Returns the damaged image, and keeps it as a file if one is named.
fn damage(image: &Golden, mutations: &[Mutation]) -> MemDisk {
    let disk = damaged(&image.disk, image.bytes, mutations);
    if let Some(path) = std::env::var_os("MOAFS_CHECK_IMAGE") {
        disk.write_to(Path::new(&path)).expect("the image can be written");
    }
    disk
}

fn words(mutations: &[Mutation]) -> String {
    let words: Vec<String> = mutations.iter().map(ToString::to_string).collect();
    words.join("; ")
}
