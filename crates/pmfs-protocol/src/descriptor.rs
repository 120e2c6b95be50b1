//! A descriptor that travels with bytes on the connection.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Sends bytes, and with them a descriptor.
///
/// # Errors
///
/// Those of the connection.
pub fn send_with(to: &UnixStream, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    match sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Receives bytes, and the descriptor that came with them.
///
/// # Errors
///
/// Those of the connection, and `InvalidData` if there was none.
pub fn receive_with(mut from: &UnixStream, bytes: &mut [u8]) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    from.read_exact(&mut bytes[received..])?;
    descriptor.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_bytes_and_its_lack_is_an_error() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        send_with(&one, b"abc", file.as_fd()).unwrap();
        let mut bytes = [0; 3];
        let received = receive_with(&other, &mut bytes).unwrap();
        assert_eq!(&bytes, b"abc");
        let numbers = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).unwrap();
        assert_eq!(numbers(received.as_fd()), numbers(file.as_fd()));
        io::Write::write_all(&mut &one, b"abc").unwrap();
        assert!(receive_with(&other, &mut bytes).is_err());
        drop(one);
        assert!(receive_with(&other, &mut bytes).is_err());
    }
}
