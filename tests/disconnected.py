"""What a program is told when its mount goes."""

import errno

# The daemon was killed, or the mount was ended by force. ECANCELED: the request waited for an entry of an io_uring whose daemon is gone.
DISCONNECTED = {errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED, errno.ENODEV}
