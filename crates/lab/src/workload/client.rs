//! A program that uses a volume: vfs calls, and the processor time they cost.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use moafs_runtime::{Rt, Task, Time};
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{Cookie, FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};

use crate::cpu::Cpu;
use crate::error::{LabError, Result};
use crate::memory::Memory;

/// Most bytes that a read or write call moves: a program's buffer. Buffered files of the time used
/// the block size.
pub const BUFFER_BYTES: usize = 64 << 10;

/// A program. Not shared between tasks.
pub struct Client<F: Format> {
    vfs: Vfs<F>,
    rt: Rt,
    cpu: Cpu,
    who: Credentials,
    root: Ino,
    buffer: RefCell<Vec<u8>>,
    files: Cell<u64>,
    cpu_ns: Cell<u64>,
    memory: Option<Arc<Memory>>,
}

impl<F: Format> Client<F> {
    /// Makes a program that runs as root.
    pub fn new(vfs: Vfs<F>, rt: Rt, cpu: Cpu) -> Client<F> {
        let root = vfs.shape().root;
        let buffer = RefCell::new(vec![0x5a; BUFFER_BYTES]);
        let (files, cpu_ns) = (Cell::new(0), Cell::new(0));
        Client { vfs, rt, cpu, who: Credentials::root(), root, buffer, files, cpu_ns, memory: None }
    }

    /// Returns the same program, whose file cache shares memory with processes.
    pub fn sharing(self, memory: &Arc<Memory>) -> Client<F> {
        Client { memory: Some(Arc::clone(memory)), ..self }
    }

    /// Returns the same program with everything below this directory of the root.
    ///
    /// # Errors
    /// Fails if there is no such directory.
    pub fn within(mut self, name: &str) -> Result<Client<F>> {
        self.root = self.open(self.root, name)?;
        Ok(self)
    }

    /// Returns the mounted volume.
    pub fn vfs(&self) -> &Vfs<F> {
        &self.vfs
    }

    /// Returns the inode number of its root directory.
    pub fn root(&self) -> Ino {
        self.root
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Time {
        self.rt.now()
    }

    /// Returns the number of files made so far.
    pub fn files_made(&self) -> u64 {
        self.files.get()
    }

    /// Returns the processor time used so far, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns.get()
    }

    /// Uses the processor for `ns` nanoseconds. Memory that the last call took is settled before.
    pub fn compute(&self, ns: u64) {
        if let Some(memory) = &self.memory {
            memory.admit();
        }
        self.cpu_ns.set(self.cpu_ns.get() + ns);
        if ns > 0 {
            self.rt.compute(ns);
        }
    }

    /// Makes a directory and returns its inode number.
    pub fn make_dir(&self, parent: Ino, name: &str) -> Result<Ino> {
        self.compute(self.cpu.create_ns);
        self.new_node(parent, name, FileKind::Directory, 0o755)
    }

    /// Makes an empty file and opens it.
    pub fn create(&self, dir: Ino, name: &str) -> Result<Ino> {
        self.compute(self.cpu.create_ns);
        let ino = self.new_node(dir, name, FileKind::Regular, 0o644)?;
        self.files.set(self.files.get() + 1);
        Ok(ino)
    }

    fn new_node(&self, dir: Ino, name: &str, kind: FileKind, perm: u32) -> Result<Ino> {
        let new = NewFile { kind, perm, umask: 0, rdev: 0, target: None };
        let stat = self.vfs.create(&self.who, dir, name_of(name), &new).map_err(LabError::volume("making a file"))?;
        Ok(stat.ino)
    }

    /// Opens a file by name.
    pub fn open(&self, dir: Ino, name: &str) -> Result<Ino> {
        self.compute(self.cpu.open_ns);
        let stat = self.vfs.lookup(&self.who, dir, name_of(name)).map_err(LabError::volume("opening a file"))?;
        Ok(stat.ino)
    }

    /// Opens files by number, as a program has them that opened them long ago.
    pub fn open_numbers(&self, files: &[Ino]) -> Result<()> {
        let stat = |ino: &Ino| self.vfs.stat(*ino).map(drop).map_err(LabError::volume("opening a file"));
        files.iter().try_for_each(stat)
    }

    /// Closes a file (or lets a directory go).
    pub fn close(&self, ino: Ino) {
        self.vfs.forget(ino, 1);
    }

    /// Writes `bytes` bytes from `offset` on, in calls of at most [`BUFFER_BYTES`].
    pub fn write(&self, ino: Ino, offset: u64, bytes: u64) -> Result<()> {
        let buffer = self.buffer.borrow();
        let mut done = 0;
        while done < bytes {
            let len = (bytes - done).min(BUFFER_BYTES as u64) as usize;
            self.compute(self.cpu.copy_ns(len));
            let written = self.vfs.write(&self.who, ino, offset + done, &buffer[..len], false);
            written.map_err(LabError::volume("writing a file"))?;
            done += len as u64;
        }
        Ok(())
    }

    /// Makes a file of `bytes` bytes and closes it. Returns its inode number.
    pub fn make_file(&self, dir: Ino, name: &str, bytes: u64) -> Result<Ino> {
        let ino = self.create(dir, name)?;
        let written = self.write(ino, 0, bytes);
        self.close(ino);
        written.map(|()| ino)
    }

    /// Returns the size of an open file in bytes.
    pub fn size(&self, ino: Ino) -> Result<u64> {
        Ok(self.vfs.stat(ino).map_err(LabError::volume("asking for a file's size"))?.attr.size)
    }

    /// Reads an open file to its end. Returns the number of bytes read.
    pub fn read_all(&self, ino: Ino) -> Result<u64> {
        let mut buffer = self.buffer.borrow_mut();
        let mut offset = 0;
        loop {
            let got = self.vfs.read(ino, offset, &mut buffer).map_err(LabError::volume("reading a file"))?;
            self.compute(self.cpu.copy_ns(got));
            offset += got as u64;
            if got < BUFFER_BYTES {
                return Ok(offset);
            }
        }
    }

    /// Reads once, at most `len` bytes (and [`BUFFER_BYTES`]) from `offset` on. Returns the number
    /// of bytes read.
    pub fn read_at(&self, ino: Ino, offset: u64, len: usize) -> Result<usize> {
        let mut buffer = self.buffer.borrow_mut();
        let len = len.min(BUFFER_BYTES);
        let got = self.vfs.read(ino, offset, &mut buffer[..len]).map_err(LabError::volume("reading a file"))?;
        self.compute(self.cpu.copy_ns(got));
        Ok(got)
    }

    /// Waits until a file is on the device.
    pub fn fsync(&self, ino: Ino) -> Result<()> {
        self.vfs.fsync(ino, false).map_err(LabError::volume("fsync"))
    }

    /// Returns another program on the same volume.
    pub fn another(&self) -> Client<F> {
        let another = Client::new(self.vfs.clone(), Rt::clone(&self.rt), self.cpu);
        Client { root: self.root, memory: self.memory.clone(), ..another }
    }

    /// Starts a program's task.
    pub fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> Task {
        self.rt.spawn(name, work)
    }

    /// Waits for a task's end.
    pub fn join(&self, task: &Task) {
        task.join(&*self.rt);
    }

    /// Removes a file's name.
    pub fn unlink(&self, dir: Ino, name: &str) -> Result<()> {
        self.compute(self.cpu.unlink_ns);
        self.vfs.unlink(&self.who, dir, name_of(name)).map_err(LabError::volume("removing a file"))
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, dir: Ino, name: &str) -> Result<()> {
        self.compute(self.cpu.unlink_ns);
        self.vfs.rmdir(&self.who, dir, name_of(name)).map_err(LabError::volume("removing a directory"))
    }

    /// Returns the names in a directory, in the order in which it lists them.
    pub fn list(&self, dir: Ino) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let listed = self.vfs.list(&self.who, dir, Cookie::START, &mut |entry| {
            if !matches!(entry.name.as_bytes(), b"." | b"..") {
                names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
            }
            true
        });
        listed.map_err(LabError::volume("listing a directory"))?;
        self.compute(self.cpu.call_ns + self.cpu.entry_ns * names.len() as u64);
        Ok(names)
    }

    /// Waits until everything is on the device.
    pub fn sync(&self) -> Result<()> {
        self.vfs.sync().map_err(LabError::volume("sync"))
    }

    /// Adds the workload's name to the error of a full volume.
    pub fn finish<T>(&self, workload: &'static str, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| match error.is_full() {
            true => LabError::Full { workload, files: self.files_made(), free_blocks: self.vfs.stat_fs().free },
            false => error,
        })
    }
}

/// Returns a name that we made up, which is always legal.
fn name_of(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("names made up here are legal")
}
