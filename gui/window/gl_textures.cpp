#include "gui/window/gl_textures.h"

#include <GL/gl.h>

namespace cpscope::gui {
namespace {

uint64_t make_texture(const Image& image) {
  GLint before = 0;
  glGetIntegerv(GL_TEXTURE_BINDING_2D, &before);
  GLuint id = 0;
  glGenTextures(1, &id);
  glBindTexture(GL_TEXTURE_2D, id);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MIN_FILTER, GL_NEAREST);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAG_FILTER, GL_NEAREST);
  // The header of GL 1.1 has no name for this constant.
  constexpr GLint kClampToEdge = 0x812F;
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_WRAP_S, kClampToEdge);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_WRAP_T, kClampToEdge);
  glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA8, image.width, image.height, 0, GL_RGBA, GL_UNSIGNED_BYTE,
               image.pixels.data());
  glBindTexture(GL_TEXTURE_2D, static_cast<GLuint>(before));
  return id;
}

void replace_texture(uint64_t id, const Image& image) {
  GLint before = 0;
  glGetIntegerv(GL_TEXTURE_BINDING_2D, &before);
  glBindTexture(GL_TEXTURE_2D, static_cast<GLuint>(id));
  glTexSubImage2D(GL_TEXTURE_2D, 0, 0, 0, image.width, image.height, GL_RGBA, GL_UNSIGNED_BYTE,
                  image.pixels.data());
  glBindTexture(GL_TEXTURE_2D, static_cast<GLuint>(before));
}

void destroy_texture(uint64_t id) {
  const auto name = static_cast<GLuint>(id);
  glDeleteTextures(1, &name);
}

}  // namespace

TextureDevice make_gl_device() {
  return {.make = make_texture, .replace = replace_texture, .destroy = destroy_texture};
}

}  // namespace cpscope::gui
