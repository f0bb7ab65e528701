//! A request body that ends in an error when it is longer than it may be.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pve_imds_model::fault::Fault;

use crate::{BoxError, RequestBody};

/// Set once too much has been read.
pub(super) type Exceeded = Arc<AtomicBool>;

/// Counts what is read. Its error is a [`Fault`], so that a reader can pass it on as it is.
#[derive(Debug)]
pub(super) struct Counted {
    inner: RequestBody,
    left: u64,
    exceeded: Exceeded,
}

impl Counted {
    pub(super) fn new(inner: RequestBody, limit: u64) -> (Self, Exceeded) {
        let exceeded = Exceeded::default();
        (Self { inner, left: limit, exceeded: Arc::clone(&exceeded) }, exceeded)
    }
}

impl Body for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if this.exceeded.load(Ordering::Acquire) {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        let read = frame.data_ref().map_or(0, |data| data.len() as u64);
        if let Some(left) = this.left.checked_sub(read) {
            this.left = left;
            return Poll::Ready(Some(Ok(frame)));
        }
        this.exceeded.store(true, Ordering::Release);
        Poll::Ready(Some(Err(Fault::body_too_large().into())))
    }

    fn is_end_stream(&self) -> bool {
        self.exceeded.load(Ordering::Acquire) || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
