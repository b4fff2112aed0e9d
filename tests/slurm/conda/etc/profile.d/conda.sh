# A stub of conda's shell part: `conda activate gpuworkshop` puts the environment of these tests in front.
conda() {
  if [ "$1 $2" != "activate gpuworkshop" ]; then
    echo "conda: this stub only knows 'activate gpuworkshop'" >&2
    return 1
  fi
  PATH="$STUB_ENVIRONMENT/bin:$PATH"
  export PATH CONDA_PREFIX="$STUB_ENVIRONMENT" CONDA_DEFAULT_ENV=gpuworkshop
}
