# The service in a container: docker build -t nocl . && docker run -p 127.0.0.1:8000:8000 -e NOCL_TOKEN=... -v nocl:/data nocl
# CPU only. For a GPU take an image of PyTorch with CUDA as the base, and pass --device cuda.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/nocl \
 && /opt/nocl/bin/pip install --no-cache-dir -c constraints.txt '.[serve,imagenet]'

FROM python:3.11-slim
RUN useradd --create-home --uid 1000 nocl && mkdir /data && chown nocl /data
COPY --from=build /opt/nocl /opt/nocl
ENV PATH=/opt/nocl/bin:$PATH OMP_NUM_THREADS=2
USER nocl
WORKDIR /data
VOLUME /data
EXPOSE 8000
# answers only if the model is loaded and can be written
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
# Outside the container others can reach it, so it refuses to start without NOCL_TOKEN (16 characters or more).
ENTRYPOINT ["nocl"]
CMD ["serve", "/data/model.nocl", "--host", "0.0.0.0"]
