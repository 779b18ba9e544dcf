//! Modelled disks for real: a kernel file system on one, the time of the media, and the comparison
//! of file systems. They need root, /dev/fuse and loop devices, and say so where they are missing.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{Format, LoopDevice, Scratch, can_mount, e2fsck, fails, is_mounted, moafs, ok, wait_until};

const MODEL: &str = "st3160812as";

/// Bytes per second that pass under the head of that drive at its start (devices' data sheet and
/// model).
const MEDIA_RATE: f64 = 77.2e6;

/// Returns true if disks can be served and attached here; prints a message if not.
fn can_attach() -> bool {
    let can = can_mount() && Path::new("/dev/loop-control").exists();
    if !can {
        eprintln!("SKIPPED: modelled disks need root, /dev/fuse and loop devices");
    }
    can
}

/// A served disk, which ends when the value is dropped, also when a test fails.
struct Disk {
    dir: PathBuf,
    _scratch: Scratch,
}

impl Disk {
    fn new(more: &[&str]) -> Disk {
        let scratch = Scratch::new(Format::Ext2);
        let dir = scratch.path("disk");
        fs::create_dir(&dir).unwrap();
        let dir_text = dir.display().to_string();
        ok(&[&["simdisk", "--model", MODEL], more, &[&dir_text]].concat());
        Disk { dir, _scratch: scratch }
    }

    fn stats(&self) -> Value {
        serde_json::from_slice(&fs::read(self.dir.join("stats")).unwrap()).unwrap()
    }

    fn number(&self, pointer: &str) -> u64 {
        self.stats().pointer(pointer).and_then(Value::as_u64).unwrap()
    }

    fn unmount(&self) {
        wait_until("unmounting the disk", || moafs(&["umount".as_ref(), self.dir.as_os_str()]).status.success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if is_mounted(&self.dir) {
            moafs(&["umount".as_ref(), "--lazy".as_ref(), self.dir.as_os_str()]);
        }
    }
}

/// A mount of the kernel; unmounted when the value is dropped.
struct KernelMount(PathBuf);

impl KernelMount {
    fn new(device: &LoopDevice, dir: &Path) -> KernelMount {
        fs::create_dir_all(dir).unwrap();
        run("mount", &["-t", "ext4", &device.path().display().to_string(), &dir.display().to_string()]);
        KernelMount(dir.to_owned())
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_kernel_file_system_keeps_its_files_on_a_modelled_disk() {
    if !can_attach() {
        return;
    }
    let disk = Disk::new(&["--size", "512M"]);
    let scratch = Scratch::new(Format::Ext2);
    let contents: Vec<u8> = (0..6_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    {
        let device = LoopDevice::attach(&disk.dir.join("disk"), &["--direct-io=on"]);
        // Without these, a thread of the kernel clears inode tables meanwhile, and its writes are counted as well.
        run(
            "mke2fs",
            &[
                "-q",
                "-F",
                "-t",
                "ext4",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
                &device.path().display().to_string(),
            ],
        );
        let before = disk.number("/drive/written_bytes");
        let mount = KernelMount::new(&device, &scratch.path("mnt"));
        fs::write(mount.0.join("file"), &contents).unwrap();
        drop(mount);
        let written = disk.number("/drive/written_bytes") - before;
        assert!(written >= contents.len() as u64, "{written} bytes were counted");
        assert!(written < 2 * contents.len() as u64, "{written} bytes were counted");
        assert!(disk.number("/drive/flushes") > 0, "{}", disk.stats());
        e2fsck(device.path());
        let mount = KernelMount::new(&device, &scratch.path("mnt"));
        assert!(fs::read(mount.0.join("file")).unwrap() == contents, "the contents differ");
        assert!(disk.number("/drive/read_bytes") >= contents.len() as u64);
    }
    disk.unmount();
}

#[test]
fn writing_in_order_takes_the_time_of_the_media() {
    if !can_attach() {
        return;
    }
    const BYTES: usize = 64 << 20;
    let disk = Disk::new(&["--size", "1G"]);
    let mut file = File::options().write(true).open(disk.dir.join("disk")).unwrap();
    for _ in 0..BYTES >> 20 {
        file.write_all(&[0x5a; 1 << 20]).unwrap();
    }
    file.sync_all().unwrap();
    let (elapsed_s, ideal_s) = (disk.number("/elapsed_ns") as f64 / 1e9, BYTES as f64 / MEDIA_RATE);
    assert!((0.97..1.1).contains(&(elapsed_s / ideal_s)), "{elapsed_s} s, the media need {ideal_s} s");
    // FUSE may cut a write that does not start on a page of memory: the sector at the cut is then written twice.
    let written = disk.number("/drive/written_bytes");
    assert!((BYTES as u64..BYTES as u64 * 101 / 100).contains(&written), "{written} bytes were counted");
    drop(file);
    disk.unmount();
}

#[test]
fn an_image_and_a_trace_stay_when_the_disk_goes() {
    if !can_attach() {
        return;
    }
    let scratch = Scratch::new(Format::Ext2);
    let (image, trace) = (scratch.path("image").display().to_string(), scratch.path("trace.csv").display().to_string());
    let disk = Disk::new(&["--size", "64M", "--image", &image, "--trace", &trace, "--set", "cache.write=false"]);
    let names: Vec<_> = fs::read_dir(&disk.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["disk", "stats"]);
    let mut file = File::options().write(true).open(disk.dir.join("disk")).unwrap();
    file.write_all(b"kept").unwrap();
    file.sync_all().unwrap();
    drop(file);
    disk.unmount();
    assert_eq!(&fs::read(&image).unwrap()[..4], b"kept");
    wait_until("the trace's end", || fs::read_to_string(&trace).unwrap().lines().count() == 3);
    let trace = fs::read_to_string(&trace).unwrap();
    assert!(trace.lines().nth(1).unwrap().contains(",write,0,1,"), "{trace}");
    assert!(trace.lines().nth(2).unwrap().contains(",flush,0,0,"), "{trace}");
}

#[test]
fn what_cannot_be_a_disk_is_refused_with_the_way_out() {
    if !can_attach() {
        return;
    }
    let scratch = Scratch::new(Format::Ext2);
    let dir = scratch.dir.path().display().to_string();
    let (_, message) = fails(&["simdisk", "--model", "no-such-drive", &dir]);
    assert!(message.contains(MODEL), "{message}");
    let (_, message) = fails(&["simdisk", "--model", MODEL, "--size", "1000T", &dir]);
    assert!(message.contains("at most the"), "{message}");
    let (_, message) = fails(&["simdisk", "--model", MODEL, "--set", "colour=red", &dir]);
    assert!(message.contains("seek.average_ms"), "{message}");
    let (_, message) = fails(&["lab", "peers", "--workload", "chess"]);
    assert!(message.contains("aged-read"), "{message}");
    let (_, message) = fails(&["lab", "peers", "--system", "fat"]);
    assert!(message.contains("btrfs"), "{message}");
}

fn dirty_limits() -> Vec<String> {
    let names = ["dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio"];
    names.map(|name| fs::read_to_string(Path::new("/proc/sys/vm").join(name)).unwrap()).to_vec()
}

#[test]
fn peers_are_compared_and_the_machine_is_as_before() {
    if !can_attach() {
        return;
    }
    let before = dirty_limits();
    let sizes = ["--scale", "0.01", "--size", "1G"];
    let output = ok(&[
        &["lab", "peers", "--system", "moafs-ext2,moafs-ext4,moafs-f2fs,ext4", "-w", "create,delete", "--json"],
        &sizes[..],
    ]
    .concat());
    let outcome: Value = serde_json::from_str(&output).unwrap();
    let rows = outcome["rows"].as_array().unwrap();
    for system in ["ext4", "moafs-ext2", "moafs-ext4", "moafs-f2fs"] {
        for workload in ["create", "delete"] {
            let elapsed = rows
                .iter()
                .find(|row| row["system"] == system && row["workload"] == workload && row["metric"] == "elapsed");
            assert!(elapsed.and_then(|row| row["value"].as_f64()).is_some_and(|value| value > 0.0), "{output}");
        }
    }
    let (_, message) = fails(&["lab", "peers", "--system", "ext4", "-w", "create", "--scale", "1", "--size", "16M"]);
    assert!(message.contains("is full") && message.contains("--size"), "{message}");
    assert_eq!(dirty_limits(), before);
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains("moafs-peers-"));
}
