//! Tells the kernel of files that hold other sectors (`st_blocks`) than it was told, and of contents and names that
//! have changed without its knowledge: by a call that failed after a part was done.
//!
//! The kernel keeps attributes until its own requests change them, but how many sectors a file holds is known only when
//! write-back has placed its data. [`Vfs::watch_unseen`] names such files in whichever thread has placed them, often
//! one that answers requests. Such a thread must not tell the kernel about any file: the kernel looks its inode up, and
//! may wait for one that it is just dropping, which waits in turn for an answer to its last writes. So they only note
//! the number here, and a thread of its own tells.
//!
//! A name is told under the lock of its directory, which the kernel holds from the request that changes it to the
//! answer: the thread waits until then, and so tells of it after the failure of the request.
//!
//! [`Vfs::watch_unseen`]: moafs_vfs::Vfs::watch_unseen

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use moafs_fuse::{NodeId, Notifier};
use moafs_vfs::api::Unseen;
use moafs_vfs::types::{Ino, Name};
use parking_lot::{Condvar, Mutex};

use crate::log::Log;
use crate::nodes::Nodes;

/// The most files that wait to be told of. Of more than that, the kernel keeps what it knows until it asks again: it
/// would have to take no notice for as long as all of them take to be written.
const WAITING_MAX: usize = 1 << 16;

/// A file that the kernel does not know is told of once more after this time: the answer by which the kernel comes to
/// know it may have been on its way.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The longest wait of a sync until the kernel has been told of the files whose data it has placed.
const TELLING_MAX: Duration = Duration::from_millis(200);

/// The most names that wait to be told of. Each has cost a caller a sync that failed.
const NAMES_MAX: usize = 1 << 16;

/// All bytes of a file.
const ALL: Range<u64> = 0..u64::MAX;

/// Files and names that the kernel is told of together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Batch {
    /// Files, each with the bytes that the kernel has to drop, if any.
    files: BTreeMap<Ino, Option<Range<u64>>>,
    /// Names, each with its directory.
    names: BTreeSet<(Ino, Box<[u8]>)>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.names.is_empty()
    }

    fn contents(&mut self, ino: Ino, range: Range<u64>) {
        let noted = self.files.entry(ino).or_default();
        *noted = Some(match noted.take() {
            Some(before) => before.start.min(range.start)..before.end.max(range.end),
            None => range,
        });
    }
}

/// One thing that the kernel is told.
#[derive(Debug, PartialEq, Eq)]
enum Notice<'a> {
    Attributes(Ino),
    Contents(Ino, &'a Range<u64>),
    Name(Ino, &'a [u8]),
}

/// The files and names that wait to be told of.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Signalled when a batch has been told, and at the end.
    told: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    batch: Batch,
    /// Number of batches that were taken to be told, and how many of them have been.
    batches: u64,
    batches_told: u64,
    ended: bool,
}

impl Notices {
    /// Notes what the kernel has not seen. Never waits.
    pub(crate) fn note_unseen(&self, unseen: Unseen<'_>) {
        match unseen {
            Unseen::Attributes(ino) => self.note(ino),
            Unseen::Name(dir, name) => self.note_name(dir, name),
        }
    }

    /// Notes that the kernel is to be told of a file. Never waits.
    pub(crate) fn note(&self, ino: Ino) {
        let mut waiting = self.waiting.lock();
        let files = &mut waiting.batch.files;
        if files.len() < WAITING_MAX && !files.contains_key(&ino) {
            files.insert(ino, None);
            self.changed.notify_one();
        }
    }

    /// Notes that the kernel is to drop what it has of a file's contents in a range. Never waits. There is always room
    /// for it: the kernel would go on with what the file had.
    pub(crate) fn note_contents(&self, ino: Ino, range: Range<u64>) {
        self.waiting.lock().batch.contents(ino, range);
        self.changed.notify_one();
    }

    /// Notes that the kernel is to drop what it has of a name, and what it keeps of listings of the directory.
    fn note_name(&self, dir: Ino, name: &Name) {
        let mut waiting = self.waiting.lock();
        if waiting.batch.names.len() < NAMES_MAX {
            waiting.batch.names.insert((dir, name.as_bytes().into()));
            waiting.batch.contents(dir, ALL);
            self.changed.notify_one();
        }
    }

    /// Returns what is to be told; nothing if it has become `until` before there is any. `None` after the end.
    fn next(&self, until: Option<Instant>) -> Option<Batch> {
        let mut waiting = self.waiting.lock();
        waiting.batches_told = waiting.batches;
        self.told.notify_all();
        while waiting.batch.is_empty() && !waiting.ended {
            match until {
                None => self.changed.wait(&mut waiting),
                Some(until) if self.changed.wait_until(&mut waiting, until).timed_out() => break,
                Some(_) => {}
            }
        }
        waiting.batches += u64::from(!waiting.batch.is_empty());
        (!waiting.ended).then(|| std::mem::take(&mut waiting.batch))
    }

    /// Waits until the kernel has been told of all that was noted before, but not for long: it may itself wait for the
    /// thread that calls this.
    pub(crate) fn wait_until_told(&self) {
        let until = Instant::now() + TELLING_MAX;
        let mut waiting = self.waiting.lock();
        let wanted = waiting.batches + u64::from(!waiting.batch.is_empty());
        while waiting.batches_told < wanted && !waiting.ended {
            if self.told.wait_until(&mut waiting, until).timed_out() {
                return;
            }
        }
    }

    fn end(&self) {
        self.waiting.lock().ended = true;
        self.changed.notify_one();
        self.told.notify_all();
    }
}

/// The thread that tells the kernel, until this is dropped.
#[derive(Debug)]
pub(crate) struct AttributesThread {
    notices: Arc<Notices>,
    thread: Option<JoinHandle<()>>,
}

impl AttributesThread {
    /// Starts to tell the kernel of what `notices` has and will have.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        notices: Arc<Notices>,
        notifier: Notifier,
        nodes: Nodes,
        log: Arc<Log>,
    ) -> io::Result<AttributesThread> {
        AttributesThread::start_with(notices, move |notice| match notice {
            Notice::Attributes(ino) => drop_attributes(&notifier, nodes.node(ino), &log),
            Notice::Contents(ino, range) => drop_contents(&notifier, nodes.node(ino), range, &log),
            Notice::Name(dir, name) => drop_name(&notifier, nodes.node(dir), name, &log),
        })
    }

    /// Starts to call `tell` with each notice; it returns false if the kernel does not know the file or the name.
    fn start_with(
        notices: Arc<Notices>,
        mut tell: impl FnMut(Notice<'_>) -> bool + Send + 'static,
    ) -> io::Result<AttributesThread> {
        let heard = Arc::clone(&notices);
        let body = move || {
            let mut unknown: VecDeque<(Instant, Ino)> = VecDeque::new();
            while let Some(Batch { files, names }) = heard.next(unknown.front().map(|(due, _)| *due)) {
                let now = Instant::now();
                let due = unknown.partition_point(|(due, _)| *due <= now);
                for (_, ino) in unknown.drain(..due) {
                    tell(Notice::Attributes(ino));
                }
                for (ino, contents) in files {
                    let notice =
                        contents.as_ref().map_or(Notice::Attributes(ino), |range| Notice::Contents(ino, range));
                    if !tell(notice) && unknown.len() < WAITING_MAX {
                        unknown.push_back((Instant::now() + AGAIN_AFTER, ino));
                    }
                }
                for (dir, name) in &names {
                    tell(Notice::Name(*dir, name));
                }
            }
        };
        let thread = std::thread::Builder::new().name("attributes".to_owned()).spawn(body);
        let thread = thread.inspect_err(|_| notices.end())?;
        Ok(AttributesThread { notices, thread: Some(thread) })
    }
}

impl Drop for AttributesThread {
    fn drop(&mut self) {
        self.notices.end();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Makes the kernel ask for a node's attributes anew; false if it does not know the node.
pub(crate) fn drop_attributes(notifier: &Notifier, node: NodeId, log: &Log) -> bool {
    told(notifier.inval_attr(node), node, log)
}

/// Makes the kernel drop its pages of a file in a range, and ask for its attributes anew; false if it does not know the
/// node. It may wait for reads and writes of those pages.
fn drop_contents(notifier: &Notifier, node: NodeId, range: &Range<u64>, log: &Log) -> bool {
    let offset = i64::try_from(range.start).unwrap_or(i64::MAX);
    // A length of 0 means all.
    let len = i64::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
    told(notifier.inval_inode(node, offset, len), node, log)
}

/// Makes the kernel drop what it has of a name; false if it has nothing. It waits for the lock of the directory.
fn drop_name(notifier: &Notifier, dir: NodeId, name: &[u8], log: &Log) -> bool {
    told(notifier.inval_entry(dir, name), dir, log)
}

/// Returns false if the kernel does not know the node.
fn told(answer: io::Result<bool>, node: NodeId, log: &Log) -> bool {
    match answer {
        Ok(is_known) => is_known,
        // The mount has ended.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => true,
        Err(error) => {
            log.failure(&format!("telling the kernel that node {} changed: {error}", node.0));
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Starts a thread that hands on each file it tells of, and waits for the kernel's answer to it.
    fn started() -> (Arc<Notices>, AttributesThread, Receiver<Ino>, std::sync::mpsc::Sender<bool>) {
        let notices = Arc::new(Notices::default());
        let (telling, told) = channel();
        let (answer, answers) = channel();
        let tell = move |notice: Notice<'_>| {
            let Notice::Attributes(ino) = notice else { panic!("{notice:?}") };
            telling.send(ino).unwrap();
            answers.recv().unwrap_or(true)
        };
        let thread = AttributesThread::start_with(Arc::clone(&notices), tell).unwrap();
        (notices, thread, told, answer)
    }

    #[test]
    fn files_noted_while_the_kernel_is_busy_are_told_of_once_each() {
        let (notices, thread, told, answer) = started();
        notices.note(Ino(5));
        assert_eq!(told.recv(), Ok(Ino(5)));
        (0..3).for_each(|_| [7, 6, 5].into_iter().for_each(|ino| notices.note(Ino(ino))));
        (0..4).for_each(|_| answer.send(true).unwrap());
        assert_eq!([(); 3].map(|()| told.recv()), [Ok(Ino(5)), Ok(Ino(6)), Ok(Ino(7))]);
        drop(thread);
        assert!(told.recv().is_err(), "the thread has ended, and told of nothing else");
    }

    #[test]
    fn a_file_that_the_kernel_does_not_know_is_told_of_once_more() {
        let (notices, thread, told, answer) = started();
        notices.note(Ino(5));
        (0..2).for_each(|_| answer.send(false).unwrap());
        assert_eq!([(); 2].map(|()| told.recv()), [Ok(Ino(5)), Ok(Ino(5))]);
        assert!(told.recv_timeout(2 * AGAIN_AFTER).is_err(), "twice is enough");
        drop(thread);
    }

    #[test]
    fn a_sync_waits_until_the_kernel_was_told_of_what_was_noted_before_but_not_for_ever() {
        let (notices, thread, told, answer) = started();
        notices.wait_until_told();
        notices.note(Ino(5));
        assert_eq!(told.recv(), Ok(Ino(5)));
        notices.note(Ino(6));
        let begun = Instant::now();
        notices.wait_until_told();
        assert!(begun.elapsed() >= TELLING_MAX, "the kernel has not answered");
        (0..2).for_each(|_| answer.send(true).unwrap());
        notices.wait_until_told();
        assert_eq!(told.try_recv(), Ok(Ino(6)));
        drop(thread);
        notices.note(Ino(7));
        notices.wait_until_told();
    }

    #[test]
    fn contents_to_drop_are_told_as_one_range_and_always_find_room() {
        let notices = Notices::default();
        (0..WAITING_MAX as u64).for_each(|ino| notices.note(Ino(ino)));
        for range in [100..200, 50..60, 150..300] {
            notices.note_contents(Ino(7), range.clone());
            notices.note_contents(Ino(1 << 20), range);
        }
        notices.note(Ino(7));
        let files = notices.next(None).unwrap().files;
        assert_eq!(files.len(), WAITING_MAX + 1);
        assert_eq!((&files[&Ino(7)], &files[&Ino(1 << 20)]), (&Some(50..300), &Some(50..300)));
        assert_eq!(files[&Ino(8)], None);
    }

    #[test]
    fn a_name_is_told_once_and_with_the_listings_of_its_directory() {
        let notices = Notices::default();
        let name = Name::new(b"name").unwrap();
        (0..2).for_each(|_| notices.note_unseen(Unseen::Name(Ino(7), name)));
        let files = BTreeMap::from([(Ino(7), Some(ALL))]);
        let names = BTreeSet::from([(Ino(7), Box::from(*b"name"))]);
        assert_eq!(notices.next(None), Some(Batch { files, names }));
    }

    #[test]
    fn no_more_files_wait_than_there_is_room_for() {
        let notices = Notices::default();
        (0..2 * WAITING_MAX as u64).for_each(|ino| notices.note(Ino(ino)));
        assert_eq!(notices.next(None).map(|batch| batch.files.len()), Some(WAITING_MAX));
        notices.end();
        assert_eq!(notices.next(None), None);
    }
}
