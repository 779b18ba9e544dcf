//! `moafs cp` from and to what has no place of its own: standard input and output, pipes, devices.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use support::{Format, Mounted, PATIENCE, Running, Scratch, can_mount, fails, is_root, ok, wait_until};

support::tests_of_ext4_and_f2fs! {
    standard_input_becomes_a_file,
    a_file_goes_to_standard_output,
    a_full_volume_keeps_no_part_of_a_stream,
    a_stream_that_is_interrupted_leaves_nothing,
    a_pipe_without_another_end_is_waited_for_until_ctrl_c,
    a_mounted_file_goes_to_standard_output,
}

/// Runs the command with these bytes as its input.
fn fed(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names(scratch: &Scratch, dir: &str) -> String {
    ok(&["ls", "-a", &scratch.inside(dir)]).replace("lost+found\n", "")
}

fn standard_input_becomes_a_file(format: Format) {
    let scratch = Scratch::with_volume(format);
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    for (source, name) in
        [("-", "/dash"), ("/dev/stdin", "/named"), ("/dev/fd/0", "/number"), ("/proc/self/fd/0", "/proc")]
    {
        let output = fed(&["cp", source, &scratch.inside(name)], &data);
        assert!(output.status.success(), "{source}: {}", said(&output));
        let kept = support::moafs(&["cat", &scratch.inside(name)]).stdout;
        assert!(kept == data, "{source}: {} bytes", kept.len());
    }
    ok(&["mkdir", &scratch.inside("/dir")]);
    assert!(fed(&["cp", "/dev/stdin", &scratch.inside("/dir")], b"x").status.success());
    assert_eq!(names(&scratch, "/dir"), "stdin\n");
    let output = fed(&["cp", "-", &scratch.inside("/dir")], b"x");
    assert!(output.status.code() == Some(1) && said(&output).contains("name the file"), "{}", said(&output));
    let output = fed(&["cp", "-", &scratch.inside("/none/")], b"x");
    assert!(output.status.code() == Some(1) && said(&output).contains("is no directory"), "{}", said(&output));
    // A file that is replaced leaves its owner and permissions to the new one, as with every copy.
    ok(&["chmod", "600", &scratch.inside("/dash")]);
    assert!(fed(&["cp", "-", &scratch.inside("/dash")], b"new").status.success());
    assert_eq!(ok(&["cat", &scratch.inside("/dash")]), "new");
    assert!(ok(&["ls", "-l", &scratch.inside("/dash")]).starts_with("-rw------- "));
    // Standard input that is a file is read as one.
    let file = scratch.path("input");
    fs::write(&file, b"a file").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_moafs"))
        .args(["cp", "/dev/stdin", &scratch.inside("/from-file")])
        .stdin(File::open(&file).unwrap())
        .status();
    assert!(status.unwrap().success());
    assert_eq!(ok(&["cat", &scratch.inside("/from-file")]), "a file");
    // On the host as well; and a file called - is meant with a directory before it.
    let out = scratch.path("out").display().to_string();
    assert!(fed(&["cp", "-", &out], b"host").status.success());
    assert_eq!(fs::read(&out).unwrap(), b"host");
    scratch.judge();
}

fn a_file_goes_to_standard_output(format: Format) {
    let scratch = Scratch::with_volume(format);
    ok(&["mkdir", &scratch.inside("/dir")]);
    assert!(fed(&["cp", "-", &scratch.inside("/a")], b"contents").status.success());
    assert_eq!(ok(&["cp", &scratch.inside("/a"), "-"]), "contents");
    assert_eq!(ok(&["cp", &scratch.inside("/a"), "/dev/stdout"]), "contents");
    assert_eq!(ok(&["cp", "--stats", &scratch.inside("/a"), "-"]), "contents");
    assert_eq!(fed(&["cp", "-", "-"], b"through").stdout, b"through");
    // Standard output that is a file is written into: the link /dev/stdout stays what it is.
    let to = scratch.path("to");
    let status = Command::new(env!("CARGO_BIN_EXE_moafs"))
        .args(["cp", &scratch.inside("/a"), "/dev/stdout"])
        .stdout(File::create(&to).unwrap())
        .status();
    assert!(status.unwrap().success());
    assert_eq!(fs::read(&to).unwrap(), b"contents");
    assert!(fs::symlink_metadata("/dev/stdout").unwrap().is_symlink());
    let before = fs::metadata("/dev/null").unwrap();
    ok(&["cp", &scratch.inside("/a"), "/dev/null"]);
    assert_eq!(fs::metadata("/dev/null").unwrap().rdev(), before.rdev());
    assert!(fails(&["cp", &scratch.inside("/none"), "-"]).1.contains("/none: No such file"));
    assert!(fails(&["cp", "-r", &scratch.inside("/dir"), "-"]).1.contains("Is a directory"));
    assert!(fails(&["cp", &scratch.inside("/a"), &scratch.inside("/a"), "-"]).1.contains("several files"));
    // A reader that goes away is no failure to complain about.
    let piped = format!("{} cp {} - | true", env!("CARGO_BIN_EXE_moafs"), scratch.inside("/a"));
    let output = Command::new("sh").args(["-c", &piped]).output().unwrap();
    assert_eq!(said(&output), "");
}

fn a_full_volume_keeps_no_part_of_a_stream(format: Format) {
    let scratch = Scratch::with_volume(format);
    let endless = format!("cat /dev/zero | {} cp - {}", env!("CARGO_BIN_EXE_moafs"), scratch.inside("/endless"));
    let output =
        Command::new("timeout").args([&PATIENCE.as_secs().to_string(), "sh", "-c", &endless]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("/endless: No space left on device"), "{}", said(&output));
    assert_eq!(names(&scratch, "/"), "");
    scratch.judge();
}

fn a_stream_that_is_interrupted_leaves_nothing(format: Format) {
    let scratch = Scratch::with_volume(format);
    let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
    command.args(["cp", "-", &scratch.inside("/part")]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut input = running.0.stdin.take().unwrap();
    input.write_all(&[1; 100_000]).unwrap();
    // The pipe holds less than that: what was written is being copied.
    let pid = running.0.id();
    let is_reading = || fs::read_link(format!("/proc/{pid}/fd/0")).is_ok();
    wait_until("reading", is_reading);
    // By now it has read all that there is, and waits for more.
    std::thread::sleep(Duration::from_millis(250));
    running.signal(libc::SIGINT);
    assert_eq!(running.exit_code(), Some(130));
    let mut words = String::new();
    running.0.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert!(words.contains("interrupted"), "{words}");
    assert_eq!(names(&scratch, "/"), "");
    scratch.judge();
}

fn a_pipe_without_another_end_is_waited_for_until_ctrl_c(format: Format) {
    let scratch = Scratch::with_volume(format);
    let pipe = scratch.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (at, pipe) = (pipe.display().to_string(), pipe);
    fed(&["cp", "-", &scratch.inside("/file")], b"contents");
    let copying = |from: &str, to: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
        let running = Running(command.args(["cp", from, to]).stderr(Stdio::null()).spawn().unwrap());
        // By now it waits for the other end.
        std::thread::sleep(Duration::from_millis(400));
        running
    };
    let (copy, outside) = (scratch.inside("/copy"), scratch.path("outside").display().to_string());
    let file = scratch.inside("/file");
    for (from, to) in [(&at, &copy), (&at, &outside), (&file, &at)] {
        let mut running = copying(from, to);
        running.signal(libc::SIGINT);
        assert_eq!(running.exit_code(), Some(130), "{from} to {to}");
    }
    let mut running = copying(&at, &copy);
    fs::write(&pipe, b"late").unwrap();
    assert_eq!(running.exit_code(), Some(0));
    assert_eq!(ok(&["cat", &copy]), "late");
    let mut running = copying(&file, &at);
    assert_eq!(fs::read(&pipe).unwrap(), b"contents");
    assert_eq!(running.exit_code(), Some(0));
    scratch.judge();
}

fn a_mounted_file_goes_to_standard_output(format: Format) {
    if !is_root() || !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let mounted = Mounted::new(&scratch, "");
    fs::write(mounted.path("live"), b"live").unwrap();
    assert_eq!(ok(&["cp", &scratch.inside("/live"), "-"]), "live");
    let output = fed(&["cp", "-", &scratch.inside("/no")], b"x");
    assert!(output.status.code() == Some(1) && said(&output).contains("is mounted on"), "{}", said(&output));
    mounted.unmount();
}
