//! Disks that pass most calls on to another disk.

/// Implements methods of [`Disk`](crate::Disk) by those of the disk in a field: for a disk that changes or watches only
/// some of the calls to the one below it. To be used inside `impl Disk for …`.
///
/// ```
/// use moafs_disk::{Disk, MemDisk, Request, Ticket};
///
/// /// A disk that prints the number of its requests.
/// struct Printing {
///     below: MemDisk,
/// }
///
/// impl Disk for Printing {
///     moafs_disk::forward_to!(below: limits, wait, make_durable, epoch, durable);
///
///     fn submit(&self, batch: Vec<Request>) -> Ticket {
///         println!("{} requests", batch.len());
///         self.below.submit(batch)
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_to {
    ($field:ident: $($method:ident),+) => {
        $($crate::forward_to!(@$method $field);)+
    };
    (@limits $field:ident) => {
        fn limits(&self) -> &$crate::Limits {
            self.$field.limits()
        }
    };
    (@submit $field:ident) => {
        fn submit(&self, batch: ::std::vec::Vec<$crate::Request>) -> $crate::Ticket {
            self.$field.submit(batch)
        }
    };
    (@wait $field:ident) => {
        fn wait(&self, ticket: $crate::Ticket) -> ::std::vec::Vec<$crate::Done> {
            self.$field.wait(ticket)
        }
    };
    (@read_into $field:ident) => {
        fn read_into(
            &self,
            parts: &mut [$crate::ReadPart<'_>],
            tag: $crate::Tag,
        ) -> ::std::result::Result<(), $crate::DiskError> {
            self.$field.read_into(parts, tag)
        }
    };
    (@make_durable $field:ident) => {
        fn make_durable(&self, upto: $crate::Epoch) -> ::std::result::Result<(), $crate::DiskError> {
            self.$field.make_durable(upto)
        }
    };
    (@epoch $field:ident) => {
        fn epoch(&self) -> $crate::Epoch {
            self.$field.epoch()
        }
    };
    (@durable $field:ident) => {
        fn durable(&self) -> ::std::option::Option<$crate::Epoch> {
            self.$field.durable()
        }
    };
}
