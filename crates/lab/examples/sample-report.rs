//! Writes a report on invented outcomes into a directory: to look at the report without running an experiment.

use std::path::PathBuf;
use std::process::ExitCode;

#[path = "../tests/report/sample.rs"]
mod sample;

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: sample-report DIR");
        return ExitCode::FAILURE;
    };
    match moafs_lab::report::write_dir(&sample::outcomes(), &dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sample-report: {error}");
            ExitCode::FAILURE
        }
    }
}
