//! The three services of a brick on one port: the brick itself, health, and reflection.
//!
//! By path, without a router: there is nothing to configure, and a router brings a web framework with it.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, Either, Ready, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};

type Answer = Result<http::Response<Body>, Infallible>;

/// Hands each request to the service that its path names.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch<B, H, R> {
    pub(crate) brick: B,
    pub(crate) health: H,
    pub(crate) reflection: R,
}

/// A service as tonic makes it.
pub(crate) trait Grpc:
    Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future = BoxFuture<'static, Answer>>
{
}

impl<S> Grpc for S where
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future = BoxFuture<'static, Answer>,
        >
{
}

impl<B: Grpc, H: Grpc, R: Grpc> Service<http::Request<Body>> for Dispatch<B, H, R> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Either<BoxFuture<'static, Answer>, Ready<Answer>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split('/').next()).unwrap_or_default();
        match service {
            "mortar.v1.Brick" => Either::Left(self.brick.call(request)),
            "grpc.health.v1.Health" => Either::Left(self.health.call(request)),
            "grpc.reflection.v1.ServerReflection" => Either::Left(self.reflection.call(request)),
            _ => Either::Right(ready(Ok(Status::unimplemented("a brick has no such service").into_http()))),
        }
    }
}
