//! Mounts a file system that keeps everything in memory, so that what is measured is the cost of the transport.
//!
//! `nullfs MOUNTPOINT [--transport auto|uring|dev] [--threads N] [--writeback]`; it runs until it is unmounted.

mod memfs;

use std::path::PathBuf;
use std::process::ExitCode;

use memfs::MemFs;
use moafs_fuse::{Session, SessionOptions, Transport};

const USAGE: &str = "usage: nullfs MOUNTPOINT [--transport auto|uring|dev] [--threads N] [--writeback] [-o OPTION,...]";

fn main() -> ExitCode {
    let (target, options) = match parse(std::env::args().skip(1)) {
        Ok(parsed) => parsed,
        Err(message) => {
            eprintln!("nullfs: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&target, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nullfs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(target: &std::path::Path, options: &SessionOptions) -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::mount(MemFs::default(), target, options)?;
    println!("ready {:?}", session.negotiated().transport);
    Ok(session.serve()?)
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<(PathBuf, SessionOptions), String> {
    let mut options = SessionOptions::default();
    options.mount.fsname = "nullfs".to_owned();
    options.mount.subtype = Some("nullfs".to_owned());
    let mut target = None;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--transport" => options.transport = parse_transport(&value()?)?,
            "--threads" => set_threads(&mut options, &value()?)?,
            "--writeback" => options.init.writeback_cache = true,
            "-o" => apply_all(&mut options, &value()?)?,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            path => target = Some(PathBuf::from(path)),
        }
    }
    Ok((target.ok_or("a mount point is needed")?, options))
}

fn parse_transport(name: &str) -> Result<Transport, String> {
    match name {
        "auto" => Ok(Transport::Auto),
        "uring" => Ok(Transport::Uring),
        "dev" => Ok(Transport::Dev),
        _ => Err(format!("unknown transport {name}")),
    }
}

/// Sets the number of threads of both transports.
fn set_threads(options: &mut SessionOptions, number: &str) -> Result<(), String> {
    let threads = number.parse().map_err(|_| format!("not a number of threads: {number}"))?;
    options.dev_threads = threads;
    options.ring_threads_per_cpu = threads;
    Ok(())
}

fn apply_all(options: &mut SessionOptions, list: &str) -> Result<(), String> {
    list.split(',').try_for_each(|option| options.mount.apply(option).map_err(|error| error.to_string()))
}
