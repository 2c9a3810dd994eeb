//! The three services of a brick on one port: the brick itself, health, and reflection.
//!
//! By path, without a router: there is nothing to configure, and a router brings a web framework with it.

use std::convert::Infallible;
use std::sync::Arc;

use futures::future::BoxFuture;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};

/// An answer of one of the services.
pub(crate) type Answer = Result<http::Response<Body>, Infallible>;

/// Answers a request of any service.
pub(crate) type Handler = Arc<dyn Fn(http::Request<Body>) -> BoxFuture<'static, Answer> + Send + Sync>;

/// A service as tonic makes it.
pub(crate) trait Grpc:
    Service<
        http::Request<Body>,
        Response = http::Response<Body>,
        Error = Infallible,
        Future = BoxFuture<'static, Answer>,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> Grpc for S where
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future = BoxFuture<'static, Answer>,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Hands each request to the service that its path names.
pub(crate) fn dispatch(brick: impl Grpc, health: impl Grpc, reflection: impl Grpc) -> Handler {
    Arc::new(move |request| {
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split('/').next()).unwrap_or_default();
        match service {
            "mortar.v1.Brick" => brick.clone().call(request),
            "grpc.health.v1.Health" => health.clone().call(request),
            "grpc.reflection.v1.ServerReflection" => reflection.clone().call(request),
            _ => Box::pin(async { Ok(Status::unimplemented("a brick has no such service").into_http()) }),
        }
    })
}
