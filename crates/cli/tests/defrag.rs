//! `moafs defrag` on images, and on real mounts that are in use.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use support::{Mounted, Running, Scratch, can_mount, e2fsck, fails, moafs, ok, wait_until};

const FILES: usize = 40;

fn contents(number: usize) -> Vec<u8> {
    (0..5000 + number).map(|at| (at * 7 + number) as u8).collect()
}

/// Writes the files of two directories alternately, each with fsync, and then removes the second directory.
fn age(top: &Path) {
    let dirs = ["kept", "gone"].map(|name| top.join(name));
    dirs.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    for number in 0..FILES {
        for dir in &dirs {
            let mut file = File::create(dir.join(number.to_string())).unwrap();
            file.write_all(&contents(number)).unwrap();
            file.sync_all().unwrap();
        }
    }
    fs::remove_dir_all(&dirs[1]).unwrap();
}

fn check(top: &Path) {
    for number in 0..FILES {
        assert_eq!(fs::read(top.join("kept").join(number.to_string())).unwrap(), contents(number), "file {number}");
    }
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(&[&["defrag", "--json"], arguments].concat())).unwrap()
}

fn requests(report: &Value) -> (u64, u64) {
    let of = |when: &str| report[when]["requests"].as_u64().unwrap();
    (of("before"), of("after"))
}

#[test]
fn an_image_is_healed_without_mounting_it_and_then_left_alone() {
    let scratch = Scratch::with_ext2("16M");
    for dir in ["/top", "/top/kept", "/top/gone"] {
        ok(&["mkdir", &scratch.inside(dir)]);
    }
    for number in 0..12 {
        let file = scratch.path(&number.to_string());
        fs::write(&file, contents(number)).unwrap();
        for dir in ["/top/kept", "/top/gone"] {
            ok(&["put".as_ref(), file.as_os_str(), scratch.inside(dir).as_ref()]);
        }
    }
    ok(&["rm", "-r", &scratch.inside("/top/gone")]);
    let image = scratch.image().display().to_string();
    let before = fs::read(&image).unwrap();
    let seen = json(&["--dry-run", &image]);
    assert_eq!(fs::read(&image).unwrap(), before, "a dry run writes nothing");
    assert!(requests(&seen).0 >= 12 && requests(&seen).1 == 1, "{seen}");
    let done = json(&[&scratch.inside("/top")]);
    assert_eq!((requests(&done), &done["ending"], &done["files"]), (requests(&seen), &"done".into(), &12.into()));
    let shown = ok(&["defrag", &image]);
    assert!(shown.contains("nothing moved"), "{shown}");
    for number in 0..12 {
        let file = moafs(&["cat", &scratch.inside(&format!("/top/kept/{number}"))]);
        assert_eq!(file.stdout, contents(number));
    }
    e2fsck(&scratch.image());
    let (code, said) = fails(&["defrag", &scratch.inside("/nothing")]);
    assert!(code == 1 && said.contains("does not exist"), "{said}");
}

#[test]
fn a_mount_is_healed_while_it_is_written_to() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_ext2("64M");
    let mounted = Mounted::new(&scratch, "");
    let top = mounted.path("top");
    age(&top);
    let kept = top.join("kept").display().to_string();
    let aged = requests(&json(&["--dry-run", &kept])).0;
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let write = || {
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                for name in ["busy", "new"] {
                    fs::write(top.join(name), vec![round; 30_000]).unwrap();
                    assert!(fs::read(top.join(name)).unwrap() == vec![round; 30_000]);
                }
                fs::rename(top.join("new"), top.join("kept/busy")).unwrap();
            }
            round
        };
        let writer = scope.spawn(write);
        for _ in 0..6 {
            let report = json(&[&mounted.target.display().to_string()]);
            assert_eq!(report["ending"], "done", "{report}");
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    // The files that the writer left scattered when it stopped are one file's worth: they do not
    // count against the defragmentation.
    let healed = requests(&json(&["--dry-run", &kept])).0;
    println!("{aged} requests, then {healed}, beside {rounds} rounds of writing");
    assert!(aged >= 5 && healed <= 3, "{aged} requests became {healed}");
    check(&top);
    mounted.unmount();
    let mounted = Mounted::new(&scratch, "");
    check(&mounted.path("top"));
    assert_eq!(fs::read(mounted.path("top/busy")).unwrap(), vec![rounds; 30_000]);
    mounted.unmount();
    e2fsck(&scratch.image());
}

#[test]
fn commands_that_are_not_understood_or_come_from_others_are_refused() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_ext2("16M");
    let mounted = Mounted::new(&scratch, "allow_other");
    let control = mounted.path(".moafs/defrag");
    let meta = fs::metadata(&control).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o777), (0, 0o644));
    let refused = |text: &str| fs::write(&control, text).unwrap_err().raw_os_error();
    assert_eq!(refused("heal"), Some(libc::EINVAL));
    assert_eq!(refused(&" ".repeat(9000)), Some(libc::EFBIG));
    assert!(fs::write(mounted.path(".moafs/stats"), "x").is_err());
    let inode = fs::metadata(&mounted.target).unwrap().ino();
    // A job that does not exist fails with a message; one that does ends.
    fs::write(&control, r#"{"start": {"token": 1, "inode": 4000000000}}"#).unwrap();
    let status = || -> Value { serde_json::from_slice(&fs::read(&control).unwrap()).unwrap() };
    wait_until("the end of a job", || status()["running"] == false);
    assert!(status()["error"].is_string(), "{}", status());
    fs::write(&control, format!(r#"{{"start": {{"token": 2, "inode": {inode}}}}}"#)).unwrap();
    wait_until("the end of a job", || status()["running"] == false);
    assert_eq!((&status()["token"], &status()["error"]), (&2.into(), &Value::Null));
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--clear-groups", "sh", "-c", "echo x > \"$0\""]).arg(&control);
    match other.stderr(Stdio::null()).status() {
        Ok(said) => assert!(!said.success(), "somebody else may command"),
        Err(_) => eprintln!("SKIPPED: setpriv is not installed"),
    }
    mounted.unmount();
}

#[test]
fn an_interrupt_stops_it_and_what_it_moved_is_there() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_ext2("64M");
    let mounted = Mounted::new(&scratch, "");
    age(&mounted.path("top"));
    // Enough directories that it is still at work when the signal comes; if not, it has ended well.
    for number in 0..2000 {
        fs::create_dir(mounted.path(&number.to_string())).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
    let child = command.arg("defrag").arg(&mounted.target).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let mut running = Running(child);
    std::thread::sleep(std::time::Duration::from_millis(30));
    running.signal(libc::SIGINT);
    let code = running.exit_code();
    assert!(matches!(code, Some(130 | 0) | None), "{code:?}");
    check(&mounted.path("top"));
    mounted.unmount();
    e2fsck(&scratch.image());
}
