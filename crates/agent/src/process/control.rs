//! What agent and supervisor tell each other: fixed packets on a socket pair, so that neither side parses or allocates.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

/// From the agent to a supervisor. A closed socket means: end the tree at once, nobody waits for it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// End the whole tree, with this much time between SIGTERM and SIGKILL.
    End(Duration),
    /// Send one signal to the command's process group.
    Signal(i32),
}

/// From a supervisor to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// The tree outlived the kill budget; only the last resort is left. The supervisor goes on trying.
    Stuck,
    /// The tree is gone; the last word of a supervisor.
    Gone(Gone),
}

/// How a tree ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    /// Wait status of the command itself, as the kernel gives it; `None` if it could not be reaped.
    pub(crate) status: Option<i32>,
    /// User and system time of everything reaped, in milliseconds.
    pub(crate) cpu_ms: u64,
    /// Largest resident set of one process, in bytes.
    pub(crate) max_rss_bytes: u64,
    /// Processes that the command left behind and that had to be ended.
    pub(crate) left_over: u32,
}

const PACKET_BYTES: usize = 48;
type Packet = [u8; PACKET_BYTES];

fn pack(fields: [u64; 6]) -> Packet {
    let mut packet = [0; PACKET_BYTES];
    for (slot, field) in packet.chunks_exact_mut(8).zip(fields) {
        slot.copy_from_slice(&field.to_ne_bytes());
    }
    packet
}

fn unpack(packet: &Packet) -> [u64; 6] {
    let mut fields = [0; 6];
    for (field, slot) in fields.iter_mut().zip(packet.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(slot);
        *field = u64::from_ne_bytes(bytes);
    }
    fields
}

fn send_packet(fd: RawFd, packet: &Packet) -> nix::Result<()> {
    send(fd, packet, MsgFlags::MSG_NOSIGNAL).map(drop)
}

/// `Ok(None)` when there is nothing yet; `Err` when the other side is gone.
fn receive_packet(fd: RawFd) -> nix::Result<Option<[u64; 6]>> {
    let mut packet = [0; PACKET_BYTES];
    loop {
        return match recv(fd, &mut packet, MsgFlags::MSG_DONTWAIT) {
            Ok(PACKET_BYTES) => Ok(Some(unpack(&packet))),
            Ok(_) => Err(Errno::EPIPE),
            Err(Errno::EAGAIN) => Ok(None),
            Err(Errno::EINTR) => continue,
            Err(error) => Err(error),
        };
    }
}

/// Gives a supervisor an order. An error means that it is gone, which its socket says as well.
pub(crate) fn send_order(control: BorrowedFd<'_>, order: Order) -> nix::Result<()> {
    let fields = match order {
        Order::End(grace) => [1, grace.as_millis() as u64, 0, 0, 0, 0],
        Order::Signal(number) => [2, number as u64, 0, 0, 0, 0],
    };
    send_packet(control.as_raw_fd(), &pack(fields))
}

/// The next order; `Err` when the agent has let go.
pub(crate) fn receive_order(control: RawFd) -> nix::Result<Option<Order>> {
    Ok(receive_packet(control)?.map(|fields| match fields[0] {
        2 => Order::Signal(fields[1] as i32),
        _ => Order::End(Duration::from_millis(fields[1])),
    }))
}

/// Tells the agent.
pub(crate) fn send_report(control: RawFd, report: Report) {
    let fields = match report {
        Report::Stuck => [1, 0, 0, 0, 0, 0],
        Report::Gone(gone) => [
            2,
            u64::from(gone.status.is_some()),
            gone.status.unwrap_or(0) as u64,
            gone.cpu_ms,
            gone.max_rss_bytes,
            gone.left_over.into(),
        ],
    };
    // An agent that is gone has nobody to tell.
    let _ = send_packet(control, &pack(fields));
}

/// The next report; `Err` when the supervisor is gone.
pub(crate) fn receive_report(control: BorrowedFd<'_>) -> nix::Result<Option<Report>> {
    Ok(receive_packet(control.as_raw_fd())?.map(|fields| match fields[0] {
        1 => Report::Stuck,
        _ => Report::Gone(Gone {
            status: (fields[1] == 1).then_some(fields[2] as i32),
            cpu_ms: fields[3],
            max_rss_bytes: fields[4],
            left_over: fields[5] as u32,
        }),
    }))
}
