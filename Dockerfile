# The demo where only Docker is installed:
#   docker build --tag decoupled . && docker run --rm decoupled
FROM python:3.13-slim
RUN apt-get update && apt-get install --yes --no-install-recommends make
WORKDIR /decoupled
COPY . .
RUN make install
CMD ["make", "demo"]
