//! `moafs tune`: changes of volumes that are not mounted.

mod support;

use std::fs;

use serde_json::Value;
use support::{Format, Scratch, fails, ok};

support::tests_of_ext4_and_f2fs! {
    a_volume_gets_a_label_and_a_uuid,
}

fn info(scratch: &Scratch) -> Value {
    serde_json::from_str(&ok(&["info", "--json", &scratch.image().display().to_string()])).expect("JSON")
}

fn a_volume_gets_a_label_and_a_uuid(format: Format) {
    let scratch = Scratch::with_plain_volume(format);
    let image = scratch.image().display().to_string();
    let uuid = "12345678-9abc-4def-8123-456789abcdef";
    ok(&["tune", "-L", "holiday", "-U", uuid, &image]);
    let told = info(&scratch).to_string();
    assert!(told.contains("holiday") && told.contains(uuid), "{told}");
    let version = || info(&scratch)["superblock"]["uuid"].as_str().map(|uuid| uuid[14..15].to_owned());
    ok(&["tune", "-U", "time", &image]);
    assert_eq!(version().as_deref(), Some("1"), "a UUID made of the time");
    ok(&["tune", "-U", "random", &image]);
    assert_eq!(version().as_deref(), Some("4"));
    scratch.judge();
}

#[test]
fn ext4_without_a_journal_is_written_after_it_got_one() {
    let scratch = Scratch::new(Format::Ext4);
    let image = scratch.image().display().to_string();
    ok(&["mkfs", "-q", "-t", "ext4", "-O", "^has_journal", &image, "64M"]);
    let file = scratch.path("file");
    fs::write(&file, vec![0x5A; 300_000]).unwrap();
    let source = file.display().to_string();
    let (_, problem) = fails(&["cp", &source, &scratch.inside("/file")]);
    assert!(problem.contains("moafs tune -j"), "{problem}");
    ok(&["tune", "-j", &image]);
    scratch.judge();
    ok(&["cp", &source, &scratch.inside("/file")]);
    scratch.judge();
    assert!(info(&scratch).to_string().contains("has_journal"));
}

#[test]
fn changes_that_a_volume_does_not_know_are_refused() {
    let scratch = Scratch::with_plain_volume(Format::F2fs);
    let image = scratch.image().display().to_string();
    let before = fs::read(scratch.image()).unwrap();
    assert!(fails(&["tune", "-L", "x", "-j", &image]).1.contains("only label and UUID"));
    assert!(fails(&["tune", &image]).1.contains("name a change"));
    assert!(fs::read(scratch.image()).unwrap() == before, "the volume changed");
}
