//! The list of commands, as text: one line each, in the order they were served.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use moafs_disk::model::Service;

use crate::queue::Ask;

const HEAD: &str =
    "start_ns,operation,sector,sectors,service_ns,overhead_ns,wait_ns,gc_ns,seek_ns,rotation_ns,transfer_ns,bus_ns";

/// The trace of commands, a CSV file.
#[derive(Debug)]
pub(crate) struct TraceFile {
    out: BufWriter<File>,
    failed: bool,
}

impl TraceFile {
    /// Creates the file and writes its header line.
    pub(crate) fn create(path: &Path) -> io::Result<TraceFile> {
        let mut out = BufWriter::new(File::create(path)?);
        writeln!(out, "{HEAD}")?;
        Ok(TraceFile { out, failed: false })
    }

    /// Adds a line. The disk goes on if the file cannot be written (it may lie on a full host); the
    /// first failure is reported on standard error.
    pub(crate) fn write(&mut self, ask: &Ask, service: &Service) {
        if self.failed {
            return;
        }
        if let Err(error) = self.try_write(ask, service) {
            self.failed = true;
            eprintln!("moafs simdisk: writing the trace: {error}; it ends here");
        }
    }

    fn try_write(&mut self, ask: &Ask, service: &Service) -> io::Result<()> {
        let Service { overhead_ns, wait_ns, gc_ns, seek_ns, rotation_ns, transfer_ns, bus_ns, .. } = service;
        let (start_ns, service_ns, verb) = (service.started.0, service.service_ns(), ask.verb.name());
        let (sector, sectors) = (ask.sectors.start, ask.sectors.end - ask.sectors.start);
        writeln!(
            self.out,
            "{start_ns},{verb},{sector},{sectors},{service_ns},\
             {overhead_ns},{wait_ns},{gc_ns},{seek_ns},{rotation_ns},{transfer_ns},{bus_ns}"
        )
    }
}
